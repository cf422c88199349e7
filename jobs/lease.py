"""The lease on a job, and the fence: every write of an attempt names its token, and an older token writes nothing."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from jobs.clock import db_time
from jobs.db import Database
from jobs.errors import LeaseLost
from jobs.states import JobState
from jobs.tables import Job


@dataclass(frozen=True)
class Lease:
    """One attempt's right to write."""

    job_id: str
    token: int
    attempt: int


@dataclass(frozen=True)
class Wishes:
    """What the owner of the job wants of its worker; cancel outranks stop, and stop outranks pause."""

    cancel: bool = False
    stop: bool = False
    pause: bool = False


def fence(lease: Lease) -> list[sa.ColumnElement[bool]]:
    """Conditions that the job row meets only while the lease is held. Belongs in an UPDATE of the job, which also locks
    its row: an INSERT that merely looks at the token can interleave with a new claim.
    """
    return [Job.id == lease.job_id, Job.lease_token == lease.token, Job.state == JobState.RUNNING]


def held(job: Job | None, lease: Lease) -> Job:
    """The job that a fenced UPDATE returned; raises LeaseLost if it found none."""
    if job is None:
        raise _lost(lease)
    return job


def heartbeat(db: Database, lease: Lease, *, lease_seconds: float) -> Wishes:
    """Extend the lease and hear what the owner wants; raises LeaseLost."""
    extend = sa.update(Job).where(*fence(lease)).values(lease_expire_time=db_time(lease_seconds))
    with db.transaction() as session:
        wishes = Job.cancel_request_time, Job.stop_request_time, Job.pause_request_time
        row = session.execute(extend.returning(*wishes)).first()
    if row is None:
        raise _lost(lease)
    return Wishes(*(asked is not None for asked in row))


def _lost(lease: Lease) -> LeaseLost:
    return LeaseLost(f"attempt {lease.attempt} of {lease.job_id} no longer holds the job")
