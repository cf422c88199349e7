"""The one place that writes a job's state; every change is one compare-and-set UPDATE and one event row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from jobs.clock import db_time
from jobs.states import TERMINAL, TRANSITIONS, JobState, Move
from jobs.tables import Job, JobEvent

Condition = sa.ColumnElement[bool]


@dataclass(frozen=True)
class Happening:
    """What an event says besides its type."""

    message: str = ""
    data: dict[str, Any] = field(default_factory=dict)


def enter(session: Session, job: Job) -> None:
    """Insert a new job in its first state."""
    job.state = JobState.QUEUED
    job.event_seq = 1
    session.add(job)
    session.flush()
    _record(session, job, Move.SUBMIT, Happening("accepted"))


def move(session: Session, move: Move, where: Sequence[Condition], what: Happening, **values: Any) -> Job | None:
    """Change the state of the job that `where` finds, set `values`, record the event, and return the job.

    None if no such job is in a state that the move may start from; then nothing was written.
    """
    sources, target = TRANSITIONS[move]
    values["state"] = target
    if target is not JobState.RUNNING:
        values |= {"lease_expire_time": None, "worker_id": None, "phase": None, "seconds_per_step": None}
    if target in TERMINAL:
        values["end_time"] = db_time()
    return note(session, move, [*where, Job.state.in_(sources)], what, **values)


def note(session: Session, kind: str, where: Sequence[Condition], what: Happening, **values: Any) -> Job | None:
    """Record an event of the job that `where` finds and set `values`; None if there is no such job."""
    job = touch(session, where, event_seq=Job.event_seq + 1, **values)
    if job is not None:
        _record(session, job, kind, what)
    return job


def touch(session: Session, where: Sequence[Condition], **values: Any) -> Job | None:
    """Set `values` of the job that `where` finds, without an event; its row stays locked until the end."""
    change = sa.update(Job).where(*where).values(update_time=db_time(), **values).returning(Job)
    options = {"synchronize_session": False, "populate_existing": True}
    return session.scalars(change, execution_options=options).one_or_none()


def _record(session: Session, job: Job, kind: str, what: Happening) -> None:
    event = JobEvent(
        job_id=job.id,
        seq=job.event_seq,
        type=str(kind),
        state=job.state,
        attempt=job.attempt,
        message=what.message,
        data=what.data,
    )
    session.add(event)
    session.flush()
