"""Where a job comes from: what its row says of that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from jobs.tables import Job
from jobs.views import ParentView
from ppo_engine.inheritance import Part


@dataclass(frozen=True, kw_only=True)
class Inherited:
    """A checkpoint that a run takes over from another."""

    job_id: str
    step: int
    path: str
    """Folder, relative to the other run's directory."""
    sha256: str
    begins_at: int
    """Step at which the new run begins."""
    anew: tuple[str, ...]
    """Parts of the state that are not taken over."""


@dataclass(frozen=True)
class Lineage:
    """A job's origin; without a path it took nothing over."""

    job_id: str
    step: int | None = None
    path: str = ""
    sha256: str = ""
    begins_at: int = 0
    anew: tuple[str, ...] = ()

    def row(self) -> dict[str, Any]:
        """Columns of the new job."""
        columns: dict[str, Any] = {"parent_job_id": self.job_id, "parent_step": self.step}
        if self.step is not None:
            facts = {"path": self.path, "sha256": self.sha256, "begins_at": self.begins_at, "anew": list(self.anew)}
            columns |= {"inherited": facts, "pinned_job_id": self.job_id, "step": self.begins_at}
        return columns


def pinned_steps(session: Session, job_id: str) -> set[int]:
    """Steps of a job's checkpoints that a fork still needs."""
    query = sa.select(Job.parent_step).where(Job.pinned_job_id == job_id)
    return {step for step in session.scalars(query) if step is not None}


def forks_waiting(session: Session, job_id: str, behind_step: int) -> dict[str, Inherited]:
    """Forks by id that have not taken over yet what they need of a job behind a step."""
    query = sa.select(Job).where(Job.pinned_job_id == job_id, Job.parent_step > behind_step)
    found = {job.id: inherited(job) for job in session.scalars(query)}
    return {fork_id: what for fork_id, what in found.items() if what is not None}


def inherited(job: Job) -> Inherited | None:
    """What the job takes over from another."""
    facts, parent, step = job.inherited, job.parent_job_id, job.parent_step
    if facts is None or parent is None or step is None:
        return None
    return Inherited(job_id=parent, step=step, **{**facts, "anew": tuple(facts["anew"])})


def begins_at(job: Job) -> int:
    """The step that a job has before it has done any of its own."""
    return 0 if job.inherited is None else int(job.inherited["begins_at"])


def parent_view(job: Job) -> ParentView | None:
    """The job's origin for its owner."""
    if job.parent_job_id is None:
        return None
    fresh = None if job.inherited is None else set(job.inherited["anew"])
    carried = [] if fresh is None else ["weights", *(part.value for part in Part if part.value not in fresh)]
    return ParentView(job_id=job.parent_job_id, step=job.parent_step, carried=carried)
