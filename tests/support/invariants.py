"""What must hold of the database whatever happened: I1 to I8 of the reliability design, from the rows alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import sqlalchemy as sa
from sqlalchemy.orm import Session

from jobs.db import Database
from jobs.lineage import begins_at
from jobs.states import TERMINAL, TRANSITIONS, JobState, Move
from jobs.tables import Job, JobAttempt, JobCheckpoint, JobEvent, JobMetrics, JobSample

_MOVES = {str(move): move for move in Move}


def violations(db: Database, *, ended: bool = False) -> list[str]:
    """Every broken invariant of every job; with `ended`, also every job that has not ended."""
    with db.read() as session:
        if session.get_bind().dialect.name == "postgresql":  # one moment of all tables, also while jobs run
            session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
        jobs = list(session.scalars(sa.select(Job)))
        return [f"{job.id} {found}" for job in jobs for found in _of_job(session, job, ended=ended)]


def check_invariants(db: Database, *, ended: bool = False) -> None:
    """Raise AssertionError with every broken invariant."""
    found = violations(db, ended=ended)
    assert not found, "\n".join(found)


def _of_job(session: Session, job: Job, *, ended: bool) -> Iterator[str]:
    events = list(session.scalars(sa.select(JobEvent).where(JobEvent.job_id == job.id).order_by(JobEvent.seq)))
    attempts = list(
        session.scalars(sa.select(JobAttempt).where(JobAttempt.job_id == job.id).order_by(JobAttempt.attempt))
    )
    if ended and job.state not in TERMINAL:
        yield f"I1 has not ended: {job.state}"
    yield from _events(job, events)
    yield from _attempts(job, attempts)
    yield from _steps(session, job, attempts)


def _events(job: Job, events: Sequence[JobEvent]) -> Iterator[str]:
    if [event.seq for event in events] != list(range(1, job.event_seq + 1)):
        yield f"I8 events are not numbered 1 to {job.event_seq}"
    if sum(event.type in TERMINAL for event in events) > 1:
        yield "I1 more than one end"
    state: JobState | None = None
    for event in events:
        if state in TERMINAL:
            yield f"I6 {event.type} after the end"
        move = _MOVES.get(event.type)
        if move is Move.SUBMIT:
            state = JobState.QUEUED
        elif move is not None:
            sources, target = TRANSITIONS[move]
            if state not in sources:
                yield f"I8 {move} from {state}"
            state = target
        if event.state != state:
            yield f"I8 event {event.seq} says {event.state}, replay {state}"
    if state != job.state:
        yield f"I8 the row says {job.state}, replay {state}"


def _attempts(job: Job, attempts: Sequence[JobAttempt]) -> Iterator[str]:
    unended = [attempt.attempt for attempt in attempts if attempt.end_time is None]
    if unended != ([job.attempt] if job.state is JobState.RUNNING else []):
        yield f"I2 open attempts {unended} of a {job.state} job"
    tokens = [attempt.lease_token for attempt in attempts]
    if any(later <= earlier for earlier, later in pairwise(tokens)) or max(tokens, default=0) != job.lease_token:
        yield f"I3 tokens {tokens}, the row's {job.lease_token}"
    if [attempt.attempt for attempt in attempts] != list(range(1, job.attempt + 1)):
        yield f"I3 attempts are not numbered 1 to {job.attempt}"
    charged = sum(attempt.charged for attempt in attempts)
    if charged != job.failed_attempts or charged > job.max_attempts:
        yield f"I7 {charged} attempts charged, the row says {job.failed_attempts} of {job.max_attempts}"


def _steps(session: Session, job: Job, attempts: Sequence[JobAttempt]) -> Iterator[str]:
    rows = list(session.scalars(sa.select(JobMetrics).where(JobMetrics.job_id == job.id).order_by(JobMetrics.step)))
    # Step 0 is the evaluation before training, where there is one.
    if [row.step for row in rows if row.step > 0] != list(range(begins_at(job) + 1, job.step + 1)):
        yield f"I5 steps {[row.step for row in rows]}, the row's {job.step}"
    by_token = {attempt.lease_token: attempt for attempt in attempts}
    for row in rows:
        attempt = by_token.get(row.lease_token)
        if attempt is None or row.time < attempt.start_time or (attempt.end_time and row.time > attempt.end_time):
            yield f"I4 step {row.step} was written outside its attempt"
    if any(later.lease_token < earlier.lease_token for earlier, later in pairwise(rows)):
        yield "I4 a step of an older attempt after one of a newer"
    written = dict(zip((row.step for row in rows), (row.lease_token for row in rows), strict=True))
    for sample in session.scalars(sa.select(JobSample).where(JobSample.job_id == job.id)):
        if written.get(sample.step) != sample.lease_token:
            yield f"I4 sample of step {sample.step} is not of the attempt that wrote the step"
    saved = list(session.scalars(sa.select(JobCheckpoint).where(JobCheckpoint.job_id == job.id)))
    for checkpoint in saved:
        if checkpoint.lease_token not in by_token or checkpoint.step > (job.last_checkpoint_step or 0):
            yield f"I4 checkpoint of step {checkpoint.step} is newer than the job's last"
    ranked = sorted((-checkpoint.score, checkpoint.step) for checkpoint in saved if checkpoint.score is not None)
    if job.best_checkpoint_step != (ranked[0][1] if ranked else None):
        yield f"the best checkpoint is said to be that of step {job.best_checkpoint_step}, scores say {ranked[:1]}"
