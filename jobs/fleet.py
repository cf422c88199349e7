"""All jobs and workers together: wake-ups, signs of life, numbers for operators. Not scoped to an owner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from jobs.clock import db_time
from jobs.db import Database
from jobs.states import JobState
from jobs.tables import IS_QUEUED, IS_RUNNING, Job, Worker

ALIVE_SECONDS = 60
"""A worker that was not heard of for longer counts as gone."""
_FORGOTTEN_SECONDS = 3600
_IDS_AT_ONCE = 1000

JobVersion = tuple[int, int, datetime]
"""Events, steps and the last change of a job: equal while nothing has happened to it."""


@dataclass(frozen=True)
class LiveJob:
    """The newest numbers of a running job."""

    job_id: str
    name: str
    owner_id: str
    step: int
    scalars: dict[str, float]
    update_time: datetime


@dataclass(frozen=True)
class WorkerRow:
    """A worker that is alive."""

    id: str
    host: str
    metrics_url: str | None
    slots: int
    busy: int
    queues: list[str]
    update_time: datetime


def due_wakeups(db: Database, *, every_seconds: float, limit: int = 100) -> list[tuple[str, str]]:
    """Id and queue of queued jobs that may start and were not woken for `every_seconds`; marks them as woken."""
    due = sa.select(Job.id, Job.queue).where(IS_QUEUED, Job.next_wake_time <= db_time())
    due = due.order_by(Job.next_wake_time).limit(limit).with_for_update(skip_locked=True)
    with db.transaction() as session:
        found = [(job_id, queue) for job_id, queue in session.execute(due)]
        woken = sa.update(Job).where(Job.id.in_([job_id for job_id, _ in found]))
        session.execute(woken.values(next_wake_time=db_time(every_seconds)))
    return found


def beat_worker(  # noqa: PLR0913 - the facts of one row
    db: Database,
    worker_id: str,
    *,
    host: str,
    metrics_url: str | None,
    slots: int,
    busy: int,
    queues: Sequence[str],
    errands: bool = True,
    max_running_jobs: int | None = None,
) -> None:
    """Say that a worker is alive, and what it holds itself to."""
    facts: dict[str, Any] = {"host": host, "metrics_url": metrics_url, "slots": slots, "busy": busy}
    facts |= {"queues": list(queues), "errands": errands, "max_running_jobs": max_running_jobs}
    beat = sa.update(Worker).where(Worker.id == worker_id).values(update_time=db_time(), **facts)
    with db.transaction() as session:
        if session.execute(beat.returning(Worker.id)).first() is None:
            session.execute(sa.delete(Worker).where(Worker.update_time < db_time(-_FORGOTTEN_SECONDS)))
            session.add(Worker(id=worker_id, **facts))


def forget_worker(db: Database, worker_id: str) -> None:
    """A worker has ended in order."""
    with db.transaction() as session:
        session.execute(sa.delete(Worker).where(Worker.id == worker_id))


def workers(db: Database) -> list[WorkerRow]:
    """Workers heard of in the last minute."""
    alive = sa.select(Worker).where(Worker.update_time > db_time(-ALIVE_SECONDS)).order_by(Worker.id)
    with db.read() as session:
        return [
            WorkerRow(row.id, row.host, row.metrics_url, row.slots, row.busy, row.queues, row.update_time)
            for row in session.scalars(alive)
        ]


def live_metrics(db: Database) -> list[LiveJob]:
    """The newest numbers of every running job."""
    columns = Job.id, Job.name, Job.owner_id, Job.step, Job.latest_metrics, Job.update_time
    running = sa.select(*columns).where(IS_RUNNING).order_by(Job.id)
    with db.read() as session:
        return [LiveJob(*row) for row in session.execute(running)]


def job_versions(db: Database, job_ids: Sequence[str]) -> dict[str, JobVersion]:
    """What changes with every event and every step of these jobs, in as few statements as their number allows."""
    columns = Job.id, Job.event_seq, Job.step, Job.update_time
    found: dict[str, JobVersion] = {}
    with db.read() as session:
        for start in range(0, len(job_ids), _IDS_AT_ONCE):
            chosen = sa.select(*columns).where(Job.id.in_(job_ids[start : start + _IDS_AT_ONCE]))
            found |= {row[0]: (row[1], row[2], row[3]) for row in session.execute(chosen)}
    return found


def count_by_state(db: Database) -> dict[JobState, int]:
    """How many jobs there are in each state."""
    counts = sa.select(Job.state, sa.func.count().label("jobs")).group_by(Job.state)
    with db.read() as session:
        found = {row.state: row.jobs for row in session.execute(counts)}
    return {state: found.get(state, 0) for state in JobState}


def queue_ages(db: Database) -> dict[str, float]:
    """How long the job that waits longest has been free to start, in seconds, by queue; only queues that have one."""
    waiting = sa.select(Job.queue, sa.func.min(Job.not_before).label("since"), db_time().label("now"))
    with db.read() as session:
        rows = session.execute(waiting.where(IS_QUEUED).group_by(Job.queue)).all()
    return {row.queue: max(0.0, (row.now - row.since).total_seconds()) for row in rows}
