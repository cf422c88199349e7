"""A job's checkpoints: which are kept, and what is forgotten when a run goes back to one."""

from __future__ import annotations

import math

import sqlalchemy as sa
from sqlalchemy.orm import Session

from jobs.db import Database
from jobs.lease import Lease, fence, held
from jobs.lineage import pinned_steps
from jobs.reports import evaluated, facts, note_once
from jobs.tables import Job, JobAttempt, JobCheckpoint, JobMetrics, JobSample
from jobs.transition import Happening, note, touch
from jobs.views import ROLLED_BACK
from ppo_engine.events import CheckpointSaved, RolledBack


def record_checkpoint(db: Database, lease: Lease, event: CheckpointSaved) -> list[str]:
    """Make a checkpoint the one to resume from; raises LeaseLost.

    Returns:
        Folders, relative to the run directory, that are no longer kept: delete them.
    """
    with db.transaction() as session:
        job = held(touch(session, fence(lease)), lease)
        old = session.get(JobCheckpoint, (lease.job_id, event.step))
        replaced = [old.path] if old is not None and old.path != event.path else []
        if old is None or replaced or old.sha256 != event.sha256:
            session.merge(_checkpoint(lease, event))
            session.flush()
            note(session, "checkpoint", fence(lease), Happening(f"checkpoint at step {event.step}", facts(event)))
        dropped = _prune(session, job)
        point_to_checkpoints(session, job.id)
        return replaced + dropped


def _checkpoint(lease: Lease, event: CheckpointSaved) -> JobCheckpoint:
    return JobCheckpoint(
        job_id=lease.job_id,
        step=event.step,
        attempt=lease.attempt,
        lease_token=lease.token,
        path=event.path,
        size_bytes=event.size_bytes,
        sha256=event.sha256,
        score=event.score if event.score is not None and math.isfinite(event.score) else None,
    )


def _prune(session: Session, job: Job) -> list[str]:
    """Forget all but the newest and the best, as the spec wants it; returns the folders."""
    wanted = job.spec["checkpoint"]
    rows = session.scalars(sa.select(JobCheckpoint).where(JobCheckpoint.job_id == job.id)).all()
    newest = sorted(rows, key=lambda row: -row.step)[: wanted["keep_last"]]
    # The earlier of two equally good ones: it has moved less far from the reference.
    ranked = sorted((-row.score, row.step) for row in rows if row.score is not None)[: wanted.get("keep_best", 0)]
    kept = {row.step for row in newest} | {step for _, step in ranked}
    kept |= pinned_steps(session, job.id)
    surplus = sorted((row for row in rows if row.step not in kept), key=lambda row: -row.step)
    for row in surplus:
        session.delete(row)
    session.flush()
    return [row.path for row in surplus]


def point_to_checkpoints(session: Session, job_id: str) -> JobCheckpoint | None:
    """Let the job name its last and its best checkpoint; returns the last."""
    mine = sa.select(JobCheckpoint).where(JobCheckpoint.job_id == job_id)
    last = session.scalar(mine.order_by(JobCheckpoint.step.desc()).limit(1))
    ranked = mine.where(JobCheckpoint.score.is_not(None))
    best = session.scalar(ranked.order_by(JobCheckpoint.score.desc(), JobCheckpoint.step).limit(1))
    steps = {"last_checkpoint_step": last and last.step, "best_checkpoint_step": best and best.step}
    touch(session, [Job.id == job_id], **steps)
    return last


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
        newest = point_to_checkpoints(session, lease.job_id)
        rewind(session, lease.job_id, newest.step if newest else 0)
        return newest.path if newest else None


def record_rollback(db: Database, lease: Lease, event: RolledBack) -> dict[str, str]:
    """The run went back to an earlier step: forget what came after it; raises LeaseLost.

    Returns:
        Folders, relative to the run directory, that are no longer kept, each with the digest of its manifest: delete
        them if they still have it, for the run writes the same steps again.
    """
    with db.transaction() as session:
        held(touch(session, fence(lease)), lease)
        what = Happening(f"rolled back from step {event.step} to step {event.to_step}", facts(event))
        if not note_once(session, lease, ROLLED_BACK, what):
            return {}
        later = JobCheckpoint.job_id == lease.job_id, JobCheckpoint.step > event.to_step
        gone = sa.delete(JobCheckpoint).where(*later).returning(JobCheckpoint.path, JobCheckpoint.sha256)
        dropped = {row.path: row.sha256 for row in session.execute(gone)}
        rewind(session, lease.job_id, event.to_step)
        point_to_checkpoints(session, lease.job_id)
        return dropped


def rewind(session: Session, job_id: str, step: int) -> None:
    """Forget what came after `step`, so that a replayed step never shows twice."""
    for table in (JobMetrics, JobSample):
        session.execute(sa.delete(table).where(table.job_id == job_id, table.step > step))
    touch(session, [Job.id == job_id], step=step, latest_metrics=_latest(session, job_id, step))
    this = JobAttempt.job_id == job_id, JobAttempt.end_time.is_(None), JobAttempt.from_step > step
    session.execute(sa.update(JobAttempt).where(*this).values(from_step=step))


def _latest(session: Session, job_id: str, step: int) -> dict[str, float]:
    """The numbers of `step`, and those of the last evaluation until then."""
    evaluation = session.get_one(Job, job_id).spec.get("evaluation")
    evaluated_at = step - step % evaluation["every_steps"] if evaluation else step
    mine = JobMetrics.job_id == job_id, JobMetrics.step.in_([step, evaluated_at])
    rows = {row.step: row.scalars for row in session.scalars(sa.select(JobMetrics).where(*mine))}
    return {**evaluated(rows.get(evaluated_at, {})), **rows.get(step, {})}
