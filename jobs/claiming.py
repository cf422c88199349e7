"""Taking a queued job: one conditional UPDATE that bumps the fencing token."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from pydantic import ValidationError
from sqlalchemy.orm import Session

from jobs.checkpoints import rewind
from jobs.clock import db_time
from jobs.db import Database
from jobs.ending import fail
from jobs.errors import Unavailable
from jobs.lease import Lease
from jobs.lineage import Inherited, begins_at, inherited
from jobs.quotas import NO_LIMITS, Limits, exhausted_owners, within_running
from jobs.spec import JobSpec
from jobs.states import JobState, Move
from jobs.tables import IS_QUEUED, Job, JobAttempt, JobCheckpoint
from jobs.transition import Happening, move
from jobs.views import JobError
from ppo_engine.config import TrainConfig


@dataclass(frozen=True)
class Claim:
    """A job that is now ours."""

    lease: Lease
    owner_id: str
    spec: JobSpec
    checkpoint: str | None
    """Folder to resume from, relative to the run directory."""
    spent_seconds: float = 0.0
    """How long the attempts before this one held the job."""
    kept: tuple[str, ...] = ()
    """All checkpoint folders that have a row; any other folder was never announced, or was meant to be deleted."""
    inherited: Inherited | None = None
    """What the run takes over from another; without a checkpoint yet, it has not been done."""
    microbatch_size: int | None = None
    """Half of what the spec says, after memory ran out."""

    @property
    def config(self) -> TrainConfig:
        """What the engine is to do in this attempt."""
        config = self.spec.train_config()
        return config if self.microbatch_size is None else config.with_microbatch_size(self.microbatch_size)

    @property
    def parts(self) -> int:
        """Turns in which the responses of a step are sampled."""
        return sampling_parts(self.microbatch_size)


def sampling_parts(microbatch_size: int | None) -> int:
    """Turns in which a run samples the responses of a step: two, once memory ran out and halved its microbatch."""
    return 1 if microbatch_size is None else 2


class _QuotaFull(Exception):
    """Another worker took the owner's last place in the same moment: undo the claim."""


@dataclass(frozen=True)
class _Claimant:
    attempt_id: str
    worker_id: str
    lease_seconds: float


@dataclass(frozen=True)
class _Taken:
    job: Job
    checkpoint: str | None
    spent_seconds: float
    kept: tuple[str, ...]


def claim(
    db: Database,
    *,
    worker_id: str,
    queues: Sequence[str],
    lease_seconds: float,
    job_id: str | None = None,
    limits: Limits = NO_LIMITS,
) -> Claim | None:
    """Take the next queued job of `queues`, or `job_id` if it is one of them; None if there is nothing to take.

    Jobs of owners who run as many as they may are passed over.
    """
    claimant = _Claimant(uuid.uuid4().hex, worker_id, lease_seconds)
    try:
        with db.transaction() as session:
            taken = _take(session, claimant, _next(queues, job_id, limits))
            if taken is not None and not within_running(session, taken.job.owner_id, limits):
                raise _QuotaFull
    except _QuotaFull:
        return None
    except Unavailable:
        # The connection may have broken after the commit: then the job is ours, and nobody else would run it.
        taken = _taken(db, claimant)
        if taken is None:
            raise
    return None if taken is None else _open(db, taken)


def _next(queues: Sequence[str], job_id: str | None, limits: Limits) -> sa.ScalarSelect[str]:
    ready = sa.select(Job.id).where(IS_QUEUED, Job.queue.in_(queues), Job.not_before <= db_time())
    ready = ready.where(Job.owner_id.not_in(exhausted_owners(limits)))
    if job_id is not None:
        ready = ready.where(Job.id == job_id)
    ready = ready.order_by(Job.rank, Job.create_time, Job.id).limit(1)
    return ready.with_for_update(skip_locked=True).scalar_subquery()


def _take(session: Session, claimant: _Claimant, candidate: sa.ScalarSelect[str]) -> _Taken | None:
    job = move(
        session,
        Move.CLAIM,
        [Job.id == candidate],
        Happening(f"claimed by {claimant.worker_id}", {"worker_id": claimant.worker_id}),
        lease_token=Job.lease_token + 1,
        attempt=Job.attempt + 1,
        worker_id=claimant.worker_id,
        lease_expire_time=db_time(claimant.lease_seconds),
        start_time=sa.func.coalesce(Job.start_time, db_time()),
    )
    if job is None:
        return None
    attempt = JobAttempt(
        job_id=job.id,
        attempt=job.attempt,
        id=claimant.attempt_id,
        lease_token=job.lease_token,
        worker_id=claimant.worker_id,
        from_step=begins_at(job) if job.last_checkpoint_step is None else job.last_checkpoint_step,
    )
    session.add(attempt)
    session.flush()
    rewind(session, job.id, attempt.from_step)
    return _described(session, job)


def _taken(db: Database, claimant: _Claimant) -> _Taken | None:
    """What this claim took, if it went through and nothing has happened since."""
    mine = sa.select(Job).join(JobAttempt, JobAttempt.job_id == Job.id).where(JobAttempt.id == claimant.attempt_id)
    with db.read() as session:
        job = session.scalar(mine.where(Job.lease_token == JobAttempt.lease_token, Job.state == JobState.RUNNING))
        return None if job is None else _described(session, job)


def _described(session: Session, job: Job) -> _Taken:
    """The job, where it resumes, how long it has run before, and which of its checkpoints are known."""
    known = sa.select(JobCheckpoint).where(JobCheckpoint.job_id == job.id)
    paths = {checkpoint.step: checkpoint.path for checkpoint in session.scalars(known)}
    ended = sa.select(JobAttempt.start_time, JobAttempt.end_time).where(
        JobAttempt.job_id == job.id, JobAttempt.end_time.is_not(None)
    )
    spent = sum((end - start).total_seconds() for start, end in session.execute(ended) if end is not None)
    return _Taken(job, paths.get(job.last_checkpoint_step or 0), spent, tuple(paths.values()))


def _open(db: Database, taken: _Taken) -> Claim | None:
    job = taken.job
    lease = Lease(job.id, job.lease_token, job.attempt)
    try:
        spec = JobSpec.model_validate(job.spec)
    except ValidationError as error:
        # Written by another version of the service. Left in the queue it would stop every worker in turn.
        fail(db, lease, JobError(code="spec_unreadable", category="internal", message=str(error), attempt=job.attempt))
        return None
    return Claim(
        lease,
        job.owner_id,
        spec,
        taken.checkpoint,
        taken.spent_seconds,
        taken.kept,
        inherited(job),
        job.microbatch_size,
    )
