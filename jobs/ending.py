"""How an attempt ends: by its worker under the fence, or by the reaper when the worker is gone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from jobs.clock import db_time
from jobs.db import Database
from jobs.errors import LeaseLost, Unavailable
from jobs.lease import Lease, fence, held
from jobs.mask import mask
from jobs.plain import storable
from jobs.states import Move
from jobs.tables import IS_RUNNING, Job, JobAttempt
from jobs.transition import Happening, move, note, touch
from jobs.views import JobError

LOST = "lost"
"""Outcome of an attempt whose worker went silent."""

MICROBATCH_HALVED = "microbatch_halved"

_REAP_AT_ONCE = 100


USER_STOP, USER_PAUSE = "user_stop", "user_pause"
"""Stop reasons of a job that succeeded or paused because its owner asked."""


def succeed(db: Database, lease: Lease, *, stop_reason: str = "completed", message: str = "") -> None:
    """End the job well; raises LeaseLost."""
    with _ending(db, lease, Move.SUCCEED) as session:
        _end(session, lease, Move.SUCCEED, message or stop_reason, stop_reason=stop_reason)


def stop(db: Database, lease: Lease, *, message: str) -> None:
    """End the job well and early because its owner asked, or cancel it if that was asked too; raises LeaseLost."""
    with _ending(db, lease, Move.SUCCEED, Move.CANCEL) as session:
        job = held(touch(session, fence(lease)), lease)
        if job.cancel_request_time is not None:
            _end(session, lease, Move.CANCEL, message, stop_reason="cancelled")
        else:
            _end(session, lease, Move.SUCCEED, message, stop_reason=USER_STOP)


def pause(db: Database, lease: Lease, *, stop_reason: str, message: str) -> None:
    """Stop the job at its checkpoint until somebody resumes it; raises LeaseLost.

    A job whose owner wants it cancelled is cancelled, one to be stopped succeeds; where the owner no longer wants the
    pause, it goes back to the queue.
    """
    with _ending(db, lease, Move.PAUSE, Move.CANCEL, Move.SUCCEED, Move.REQUEUE) as session:
        job = held(touch(session, fence(lease)), lease)
        if job.cancel_request_time is not None:
            _end(session, lease, Move.CANCEL, message, stop_reason="cancelled")
        elif _can_stop(job):
            _end(session, lease, Move.SUCCEED, message, stop_reason=USER_STOP)
        elif stop_reason == USER_PAUSE and job.pause_request_time is None:
            _give_up(session, job, error=None, charge=False)
        else:
            _end(session, lease, Move.PAUSE, message, stop_reason=stop_reason, pause_request_time=None)


def _can_stop(job: Job) -> bool:
    """Whether the owner wants the job stopped and it has something to end with."""
    return job.stop_request_time is not None and job.last_checkpoint_step is not None


def cancelled(db: Database, lease: Lease) -> None:
    """End the job because its owner asked; raises LeaseLost."""
    with _ending(db, lease, Move.CANCEL) as session:
        _end(session, lease, Move.CANCEL, "cancelled while running", stop_reason="cancelled")


def fail(db: Database, lease: Lease, error: JobError) -> None:
    """End the job with an error that no further attempt can help; raises LeaseLost."""
    with _ending(db, lease, Move.FAIL) as session:
        _end(session, lease, Move.FAIL, error.message, error=error, charge=True)


def requeue(
    db: Database, lease: Lease, *, error: JobError | None, charge: bool, delay_seconds: float | None = None
) -> None:
    """Give the job back to the queue, to go on from its last checkpoint; raises LeaseLost.

    With `charge` the attempt counts as failed, and the last one that may fail fails the job. A job whose owner wants it
    cancelled, stopped or paused is that instead, the latter two with its last checkpoint. Unless `delay_seconds` says
    otherwise, it waits the longer the more attempts have failed.
    """
    with _ending(db, lease, Move.REQUEUE, Move.FAIL, Move.CANCEL, Move.SUCCEED, Move.PAUSE) as session:
        job = held(touch(session, fence(lease)), lease)
        _give_up(session, job, error=error, charge=charge, delay_seconds=delay_seconds)


def halve_microbatch(db: Database, lease: Lease, *, error: JobError, before: int, after: int) -> None:
    """Give the job back to the queue because memory ran out, to go on with less at once; raises LeaseLost.

    Its later attempts have microbatches of `after` sequences, and sample a step's responses in two turns. No attempt is
    charged, since the next one is not the same again. Sizes in sequences.
    """
    with _ending(db, lease, Move.REQUEUE, Move.CANCEL, Move.SUCCEED, Move.PAUSE) as session:
        what = Happening(
            f"memory ran out: microbatches of {after} instead of {before} sequences from now on, and the responses of "
            "a step sampled in two turns, with the same random numbers; numbers change by rounding alone",
            {"before": before, "after": after},
        )
        job = held(note(session, MICROBATCH_HALVED, fence(lease), what, microbatch_size=after), lease)
        _give_up(session, job, error=error, charge=False)


def reap(db: Database) -> list[str]:
    """Take jobs from workers whose lease ran out, and return their ids. Any process may call it at any time."""
    expired = sa.select(Job).where(IS_RUNNING, Job.lease_expire_time < db_time())
    expired = expired.order_by(Job.lease_expire_time).limit(_REAP_AT_ONCE).with_for_update(skip_locked=True)
    with db.transaction() as session:
        jobs = list(session.scalars(expired))
        for job in jobs:
            _give_up(session, job, error=_worker_lost(job), charge=True, outcome=LOST)
    return [job.id for job in jobs]


def release(db: Database, job_id: str) -> bool:
    """Take a running job from its worker without charging an attempt, for operators; False if it is not running."""
    running = sa.select(Job).where(Job.id == job_id, IS_RUNNING).with_for_update()
    with db.transaction() as session:
        job = session.scalar(running)
        if job is not None:
            _give_up(session, job, error=None, charge=False, outcome=LOST)
    return job is not None


def backoff_seconds(failed_attempts: int) -> float:
    """How long to wait after so many failed attempts: at first not at all, then 10, 20, 40 … to 600 s."""
    return min(600.0, 10.0 * 2.0 ** min(failed_attempts - 2, 10)) if failed_attempts >= 2 else 0.0


@contextmanager
def _ending(db: Database, lease: Lease, *outcomes: Move) -> Iterator[Session]:
    """A transaction that ends the attempt; when it fails, look whether it, or one before it, went through after all."""
    try:
        with db.transaction() as session:
            yield session
    except (LeaseLost, Unavailable):
        if _outcome(db, lease) not in outcomes:
            raise


def _outcome(db: Database, lease: Lease) -> str | None:
    mine = JobAttempt.job_id == lease.job_id, JobAttempt.lease_token == lease.token
    with db.read() as session:
        return session.scalar(sa.select(JobAttempt.outcome).where(*mine))


def _give_up(
    session: Session,
    job: Job,
    *,
    error: JobError | None,
    charge: bool,
    delay_seconds: float | None = None,
    outcome: str | None = None,
) -> None:
    """Do what its owner wants of a running job whose row is locked; else fail or requeue it."""
    lease = Lease(job.id, job.lease_token, job.attempt)
    reason = error.message if error else "given back by the worker"
    how = partial(_end, session, lease, outcome=outcome, error=error, charge=charge)
    if job.cancel_request_time is not None:
        how(Move.CANCEL, reason, stop_reason="cancelled")
    elif _can_stop(job):
        how(Move.SUCCEED, f"stopped at the checkpoint of step {job.last_checkpoint_step}", stop_reason=USER_STOP)
    elif charge and job.failed_attempts + 1 >= job.max_attempts:
        how(Move.FAIL, reason, error=error or _exhausted(job))
    elif job.pause_request_time is not None:
        how(Move.PAUSE, reason, stop_reason=USER_PAUSE, pause_request_time=None)
    else:
        if delay_seconds is None:
            delay_seconds = backoff_seconds(job.failed_attempts + 1) if charge else 0.0
        later: dict[str, Any] = {"not_before": db_time(delay_seconds), "next_wake_time": db_time(delay_seconds)}
        how(Move.REQUEUE, reason, **later)


def _end(
    session: Session,
    lease: Lease,
    how: Move,
    message: str,
    *,
    outcome: str | None = None,
    error: JobError | None = None,
    charge: bool = False,
    **values: Any,
) -> None:
    """Move the job out of `running` and close the attempt."""
    document = _document(error) if error else None
    if document is not None or how is Move.SUCCEED:
        values["error"] = None if how is Move.SUCCEED else document
    data = {key: value for key, value in (document or {}).items() if key != "log_tail"}
    what = Happening(_clean(message), data)
    charged = Job.failed_attempts + int(charge)
    job = held(move(session, how, fence(lease), what, failed_attempts=charged, **values), lease)
    mine = JobAttempt.job_id == lease.job_id, JobAttempt.lease_token == lease.token
    close = {
        "end_time": db_time(),
        "end_step": job.step,
        "outcome": outcome or how,
        "charged": charge,
        "error": document,
    }
    session.execute(sa.update(JobAttempt).where(*mine).values(**close))


def _document(error: JobError) -> dict[str, Any]:
    fields = error.model_dump(mode="json", exclude_none=True)
    return {key: _clean(value) if isinstance(value, str) else value for key, value in fields.items()}


def _clean(text: str) -> str:
    return mask(storable(text))


def _worker_lost(job: Job) -> JobError:
    message = f"worker {job.worker_id} stopped reporting"
    return JobError(code="worker_lost", category="infra", message=message, attempt=job.attempt, step=job.step)


def _exhausted(job: Job) -> JobError:
    message = f"{job.max_attempts} attempts failed"
    return JobError(code="attempts_exhausted", category="infra", message=message, attempt=job.attempt, step=job.step)
