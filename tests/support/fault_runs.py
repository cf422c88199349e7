"""What tests of faults ask the database: who holds which job, and what came of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise

import sqlalchemy as sa

from jobs import service
from jobs.auth import LOCAL
from jobs.db import Database
from jobs.states import JobState
from jobs.tables import Job, JobAttempt
from tests.support.fault_table import Row
from tests.support.invariants import check_invariants
from tests.support.stale_writes import stale_writes
from tests.support.workers import Stack, final_weights, wait_for_state, weights_after


def held_by(db: Database, worker_id: str) -> list[str]:
    """Ids of the jobs that a worker holds."""
    with db.read() as session:
        return list(session.scalars(sa.select(Job.id).where(Job.worker_id == worker_id)))


def holders(db: Database) -> list[str]:
    """Workers that hold a job, sorted."""
    with db.read() as session:
        return sorted(set(session.scalars(sa.select(Job.worker_id).where(Job.state == JobState.RUNNING))) - {None})


def attempts_of(db: Database) -> list[JobAttempt]:
    """Every attempt of every job, by job and number."""
    with db.read() as session:
        return list(session.scalars(sa.select(JobAttempt).order_by(JobAttempt.job_id, JobAttempt.attempt)))


def overlapping(attempts: Sequence[JobAttempt]) -> int:
    """Attempts that began before the one before them had ended."""
    found = 0
    for _, own in groupby(attempts, key=lambda attempt: attempt.job_id):
        found += sum(first.end_time is None or second.start_time < first.end_time for first, second in pairwise(own))
    return found


def settle(
    installed: Stack, jobs: Sequence[str], table: Row, *, once: bool, seconds: float = 60, steps: int | None = None
) -> None:
    """Wait for the end of all jobs, count what came of them, and fail unless all is well.

    Args:
        once: the fault costs no attempt, so every job has one.
        seconds: longest wait for each job's end.
        steps: steps of each job, whose weights must be those of a run that nothing happened to.
    """
    ended = [wait_for_state(installed.db, job_id, seconds=seconds) for job_id in jobs]
    attempts = attempts_of(installed.db)
    table.jobs += len(jobs)
    table.lost += sum(job.state is not JobState.SUCCEEDED for job in ended)
    table.doubled += len(attempts) - len(jobs) if once else overlapping(attempts)
    table.doubled += len(service.list_jobs(installed.db, LOCAL, page_size=500).items) - len(jobs)
    table.stale = (table.stale or 0) + stale_writes(installed.db)
    check_invariants(installed.db, ended=True)
    assert (table.lost, table.doubled, table.stale) == (0, 0, 0), installed.logs()
    if steps is not None:
        for job_id in jobs:
            assert final_weights(installed.run_dir(job_id)) == weights_after(steps), job_id
