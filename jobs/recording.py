"""What a worker reports of a running attempt. Every report may come twice; it is stored once."""

from __future__ import annotations

import math

import sqlalchemy as sa
from sqlalchemy.orm import Session

from jobs.clock import db_time
from jobs.db import Database
from jobs.lease import Lease, fence, held
from jobs.plain import storable
from jobs.tables import Job, JobAttempt, JobCheckpoint, JobMetrics, JobSample
from jobs.transition import Happening, note, touch
from ppo_engine.events import CheckpointSaved, PhaseEntered, Sample, Started, StepDone

_SECONDS = "time/ppo/total"
_MEMORY = 0.8
"""Share of the old average in the moving average of the seconds per step."""


def record_started(db: Database, lease: Lease, event: Started) -> None:
    """The models are loaded; raises LeaseLost."""
    with db.transaction() as session:
        held(touch(session, fence(lease), steps_total=event.steps_total), lease)
        loaded = sa.update(JobAttempt).where(
            JobAttempt.job_id == lease.job_id, JobAttempt.attempt == lease.attempt, JobAttempt.ready_time.is_(None)
        )
        if session.execute(loaded.values(ready_time=db_time()).returning(JobAttempt.id)).first() is not None:
            what = Happening(f"training from step {event.step} on {event.device}", event.model_dump(exclude={"event"}))
            note(session, "started", fence(lease), what)


def record_phase(db: Database, lease: Lease, event: PhaseEntered) -> None:
    """The run entered a phase; raises LeaseLost."""
    with db.transaction() as session:
        held(touch(session, fence(lease), phase=event.phase), lease)


def record_step(db: Database, lease: Lease, event: StepDone) -> None:
    """Store the metrics and samples of a step; raises LeaseLost."""
    scalars = {key: value for key, value in event.scalars.items() if math.isfinite(value)}
    values = {"step": event.step, "latest_metrics": scalars}
    if _SECONDS in scalars:
        average = _MEMORY * Job.seconds_per_step + (1 - _MEMORY) * scalars[_SECONDS]
        values["seconds_per_step"] = sa.func.coalesce(average, scalars[_SECONDS])
    with db.transaction() as session:
        held(touch(session, fence(lease), **values), lease)
        for table in (JobMetrics, JobSample):
            session.execute(sa.delete(table).where(table.job_id == lease.job_id, table.step == event.step))
        session.add(JobMetrics(job_id=lease.job_id, step=event.step, lease_token=lease.token, scalars=scalars))
        session.add_all(_sample(lease, event.step, index, sample) for index, sample in enumerate(event.samples))


def _sample(lease: Lease, step: int, index: int, sample: Sample) -> JobSample:
    return JobSample(
        job_id=lease.job_id,
        step=step,
        index=index,
        lease_token=lease.token,
        prompt=storable(sample.prompt),
        response=storable(sample.response),
        score=sample.score,
        components=sample.components,
        kl=sample.kl,
        response_tokens=sample.response_tokens,
        finished=sample.finished,
    )


def record_checkpoint(db: Database, lease: Lease, event: CheckpointSaved) -> list[str]:
    """Make a checkpoint the one to resume from; raises LeaseLost.

    Returns:
        Folders, relative to the run directory, that are no longer kept: delete them.
    """
    with db.transaction() as session:
        job = held(touch(session, fence(lease), last_checkpoint_step=event.step), lease)
        old = session.get(JobCheckpoint, (lease.job_id, event.step))
        replaced = [old.path] if old is not None and old.path != event.path else []
        if old is None or replaced:
            session.merge(_checkpoint(lease, event))
            what = Happening(f"checkpoint at step {event.step}", event.model_dump(exclude={"event"}))
            note(session, "checkpoint", fence(lease), what)
        return replaced + _prune(session, lease, keep=job.spec["checkpoint"]["keep_last"])


def _checkpoint(lease: Lease, event: CheckpointSaved) -> JobCheckpoint:
    return JobCheckpoint(
        job_id=lease.job_id,
        step=event.step,
        attempt=lease.attempt,
        lease_token=lease.token,
        path=event.path,
        size_bytes=event.size_bytes,
        sha256=event.sha256,
    )


def _prune(session: Session, lease: Lease, *, keep: int) -> list[str]:
    newest_first = (
        sa.select(JobCheckpoint).where(JobCheckpoint.job_id == lease.job_id).order_by(JobCheckpoint.step.desc())
    )
    surplus = list(session.scalars(newest_first.offset(keep)))
    for row in surplus:
        session.delete(row)
    return [row.path for row in surplus]


def discard_checkpoint(db: Database, lease: Lease, path: str) -> str | None:
    """Forget a checkpoint that was found damaged, and what was recorded after the one before it; raises LeaseLost.

    Returns:
        The folder to resume from now, relative to the run directory; None to start anew.
    """
    with db.transaction() as session:
        held(touch(session, fence(lease)), lease)
        mine = JobCheckpoint.job_id == lease.job_id
        gone = sa.delete(JobCheckpoint).where(mine, JobCheckpoint.path == path).returning(JobCheckpoint.step)
        if session.execute(gone).first() is not None:
            what = Happening(f"checkpoint {path} is damaged and is not used", {"path": path})
            note(session, "checkpoint_discarded", fence(lease), what)
        newest = session.scalar(sa.select(JobCheckpoint).where(mine).order_by(JobCheckpoint.step.desc()).limit(1))
        rewind(session, lease.job_id, newest.step if newest else 0)
        touch(session, fence(lease), last_checkpoint_step=newest.step if newest else None)
        return newest.path if newest else None


def rewind(session: Session, job_id: str, step: int) -> None:
    """Forget what came after the checkpoint at `step`, so that a replayed step never shows twice."""
    for table in (JobMetrics, JobSample):
        session.execute(sa.delete(table).where(table.job_id == job_id, table.step > step))
    scalars = session.scalar(sa.select(JobMetrics.scalars).where(JobMetrics.job_id == job_id, JobMetrics.step == step))
    touch(session, [Job.id == job_id], step=step, latest_metrics=scalars or {})
    this = JobAttempt.job_id == job_id, JobAttempt.end_time.is_(None)
    session.execute(sa.update(JobAttempt).where(*this).values(from_step=step))
