"""The one place that writes a job's state; every change is one compare-and-set UPDATE and one event row.

What webhooks are to be told of it is written with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from jobs.clock import db_time
from jobs.outbox import announce
from jobs.states import TERMINAL, TRANSITIONS, JobState, Move
from jobs.tables import Job, JobEvent

Condition = sa.ColumnElement[bool]


@dataclass(frozen=True)
class Happening:
    """What an event says besides its type."""

    message: str = ""
    data: dict[str, Any] = field(default_factory=dict)


# Without the ORM, which costs a submit more than the database does; built once, since building is half of that.
_JOBS, _EVENTS = Job.__table__, JobEvent.__table__
_ENTER = sa.insert(_JOBS).returning(*(column for column in _JOBS.c if column.name != "spec"))  # type: ignore[arg-type]
_RECORD = sa.insert(_EVENTS)  # type: ignore[arg-type]


def enter(session: Session, values: Mapping[str, Any]) -> Job:
    """Insert a new job in its first state, and return it."""
    row = {**values, "state": JobState.QUEUED, "event_seq": 1}
    entered = session.execute(_ENTER, row).one()
    job = Job(**entered._mapping, spec=row["spec"])
    _record(session, job, Move.SUBMIT, Happening("accepted"))
    return job


def move(session: Session, move: Move, where: Sequence[Condition], what: Happening, **values: Any) -> Job | None:
    """Change the state of the job that `where` finds, set `values`, record the event, and return the job.

    None if no such job is in a state that the move may start from; then nothing was written.
    """
    sources, target = TRANSITIONS[move]
    values["state"] = target
    if target is not JobState.RUNNING:
        values |= {"lease_expire_time": None, "worker_id": None, "phase": None}
    if target in (JobState.QUEUED, JobState.PAUSED):
        values["seconds_per_step"] = None  # the next attempt may be on a faster machine; of a job that ended it stays
    if target in TERMINAL:
        values |= {"end_time": db_time(), "pinned_job_id": None}
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
    event = {
        "job_id": job.id,
        "seq": job.event_seq,
        "type": str(kind),
        "state": job.state,
        "attempt": job.attempt,
        "message": what.message,
        "data": what.data,
    }
    session.execute(_RECORD, event)
    announce(session, job, event)
