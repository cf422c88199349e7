"""New jobs from old ones: the same spec again, or a run that goes on from one of the old job's checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from jobs.auth import Principal
from jobs.db import Database
from jobs.errors import IllegalTransition, InvalidArgument, JobNotFound, Problem
from jobs.history import no_checkpoint, owned
from jobs.job_view import actions, labels
from jobs.lineage import Lineage
from jobs.problems import check
from jobs.quotas import NO_LIMITS, Limits
from jobs.reach import Reach
from jobs.service import submit
from jobs.spec import JobName, JobSpec, invalid_spec, parse_spec
from jobs.states import JobState
from jobs.tables import Job, JobCheckpoint
from jobs.views import JobView
from ppo_engine.config import Config
from ppo_engine.inheritance import FIXED, Part, anew


class ForkRequest(Config):
    """Where a fork begins and what is different in it."""

    from_step: int | Literal["best", "last"] = Field(
        "last", description="The checkpoint: its step, or `best` or `last` of those that are kept."
    )
    overrides: dict[str, Any] = Field(
        default_factory=dict, description="A JSON merge patch (RFC 7396) of the old job's spec."
    )
    name: JobName | None = Field(None, description="Name of the new job. Default: the old one's.")


def parse_fork(data: Any) -> ForkRequest:
    """Read a request from parsed JSON; raises InvalidArgument with every problem."""
    request, problems = check(ForkRequest, data)
    if request is None or problems:
        raise InvalidArgument("the fork cannot be made so", problems=problems)
    return request


def retry(
    db: Database,
    principal: Principal,
    job_id: str,
    *,
    roots: Sequence[Path],
    request_id: str | None = None,
    limits: Limits = NO_LIMITS,
    reach: Reach | None = None,
) -> tuple[JobView, bool]:
    """Submit the spec of a job that failed or was cancelled again, as a new job with its present name and labels.

    Without a `request_id` there is one retry of a job: asking twice returns it. The flag says whether it is new.

    Raises:
        IllegalTransition: the job has not failed or been cancelled.
    """
    with db.read() as session:
        job = owned(session, principal, job_id)
        if job.state not in (JobState.FAILED, JobState.CANCELLED):
            hint = "a job that waits or runs need not be repeated" if job.end_time is None else "fork it instead"
            message = f"only what failed or was cancelled is retried, and the job is {job.state}: {hint}"
            raise IllegalTransition(message, state=job.state, allowed_actions=actions(job))
        spec = _renamed(job, JobSpec.model_validate(job.spec), None)
    key = request_id or f'"retry"{job_id}'  # no client can send quotes
    return submit(db, principal, spec, roots=roots, request_id=key, limits=limits, lineage=Lineage(job_id), reach=reach)


def fork(
    db: Database,
    principal: Principal,
    job_id: str,
    request: ForkRequest,
    *,
    roots: Sequence[Path],
    request_id: str | None = None,
    limits: Limits = NO_LIMITS,
    reach: Reach | None = None,
) -> tuple[JobView, bool]:
    """Submit a job that goes on from a checkpoint of another; the flag says whether it is new.

    Raises:
        JobNotFound: that checkpoint is not kept.
        InvalidSpec: the overrides make no spec, or one that the checkpoint does not fit.
    """
    with db.read() as session:
        job = owned(session, principal, job_id)
        old = JobSpec.model_validate(job.spec)
        spec = _renamed(job, parse_spec(merge_patched(old.document(), request.overrides)), request)
        checkpoint = session.get(JobCheckpoint, (job_id, _step(job, request.from_step)))
        if checkpoint is None:
            raise no_checkpoint(session, job_id, f"of step {request.from_step}")
    lineage = _lineage(old, spec, checkpoint)
    return submit(db, principal, spec, roots=roots, request_id=request_id, limits=limits, lineage=lineage, reach=reach)


def merge_patched(target: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patched(merged.get(name), value)
    return merged


def _renamed(job: Job, spec: JobSpec, request: ForkRequest | None) -> JobSpec:
    """With the job's present name and labels, where the request has no others."""
    changes: dict[str, Any] = {}
    overrides = {} if request is None else request.overrides
    if request is not None and request.name is not None:
        changes["name"] = request.name
    elif "name" not in overrides:
        changes["name"] = job.name
    if "labels" not in overrides:
        changes["labels"] = labels(job)
    return spec.model_copy(update=changes)


def _step(job: Job, wanted: int | Literal["best", "last"]) -> int:
    step = {"best": job.best_checkpoint_step, "last": job.last_checkpoint_step}.get(str(wanted), wanted)
    if step is None:
        raise JobNotFound(f"the job keeps no checkpoint that could be its {wanted}")
    if not isinstance(step, int) or not 0 <= step < 2**63:
        raise JobNotFound(f"the job keeps no checkpoint of step {wanted}")
    return step


def _lineage(old: JobSpec, new: JobSpec, checkpoint: JobCheckpoint) -> Lineage:
    before, after = old.document(), new.document()
    problems = [
        Problem(
            pointer=f"/model/{name}",
            code="not_forkable",
            detail="a fork has the weights of its checkpoint, so this cannot change; submit a new job instead",
        )
        for name in FIXED
        if before["model"].get(name) != after["model"].get(name)
    ]
    fresh = anew(before, after)
    begins_at = 0 if Part.TRAINING in fresh else checkpoint.step
    if new.ppo.steps <= begins_at:
        detail = f"the fork goes on from step {begins_at}: it must be more than that"
        problems.append(Problem(pointer="/ppo/steps", code="out_of_range", detail=detail, given=new.ppo.steps))
    if problems:
        raise invalid_spec(problems)
    return Lineage(
        checkpoint.job_id,
        step=checkpoint.step,
        path=checkpoint.path,
        sha256=checkpoint.sha256,
        begins_at=begins_at,
        anew=tuple(sorted(fresh)),
    )
