"""Every move from every state: it happens where the table says so, and leaves no trace elsewhere."""

from __future__ import annotations

from itertools import product

import pytest
import sqlalchemy as sa

from jobs.clock import db_time
from jobs.db import Database
from jobs.states import TERMINAL, TRANSITIONS, JobState, Move, allowed_actions
from jobs.tables import Job, JobEvent
from jobs.transition import Happening, move
from tests.support.attempts import submitted

_LEASE = {"worker_id": "w", "lease_expire_time": db_time(60)}


def put(db: Database, job_id: str, state: JobState) -> None:
    """Set a state by force, with what the constraints want of it."""
    values = {"state": state, "end_time": db_time() if state in TERMINAL else None}
    values |= _LEASE if state is JobState.RUNNING else {}
    with db.transaction() as session:
        session.execute(sa.update(Job).where(Job.id == job_id).values(**values))


def test_every_state_and_move(database: Database) -> None:
    for state, how in product(JobState, TRANSITIONS):
        move_from(database, state, how)


def move_from(database: Database, state: JobState, how: Move) -> None:
    """Try one move, and look at what it left behind."""
    job_id = submitted(database)
    put(database, job_id, state)
    sources, target = TRANSITIONS[how]
    lease = _LEASE if target is JobState.RUNNING else {}

    with database.transaction() as session:
        moved = move(session, how, [Job.id == job_id], Happening("why", {"a": 1}), **lease)

    with database.read() as session:
        job = session.get_one(Job, job_id)
        events = list(session.scalars(sa.select(JobEvent).where(JobEvent.job_id == job_id).order_by(JobEvent.seq)))
    assert (moved is not None) == (state in sources)
    assert job.state is (target if state in sources else state)
    assert (job.end_time is not None) == (job.state in TERMINAL)
    assert (job.worker_id is not None) == (job.state is JobState.RUNNING)
    assert [event.seq for event in events] == list(range(1, job.event_seq + 1))
    newest = events[-1]
    if state in sources:
        assert (newest.type, newest.state, newest.message, newest.data) == (how, target, "why", {"a": 1})
    else:
        assert newest.type == Move.SUBMIT


def test_nothing_leads_out_of_an_end() -> None:
    assert not any(sources & TERMINAL for sources, _ in TRANSITIONS.values())
    assert {verb for state in TERMINAL for verb in allowed_actions(state)} == {"retry"}, "which makes a new job"


IMPOSSIBLE: list[dict[str, object]] = [
    {"state": sa.literal("sleeping", sa.String)},
    {"state": JobState.SUCCEEDED},
    {"end_time": db_time()},
    {"state": JobState.RUNNING},
    {"lease_expire_time": db_time()},
    {"failed_attempts": 4},
    {"step": 6},
    {"step": -1},
]


def test_the_database_itself_refuses_impossible_rows(database: Database) -> None:
    job_id = submitted(database)
    for row in IMPOSSIBLE:
        with pytest.raises(sa.exc.IntegrityError), database.transaction() as session:
            session.execute(sa.update(Job).where(Job.id == job_id).values(**row))
