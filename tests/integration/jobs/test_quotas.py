"""Quotas hold whoever submits and claims at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from jobs import quotas
from jobs.access_requests import QuotaRequest
from jobs.auth import OPERATOR
from jobs.claiming import Claim, claim
from jobs.db import Database
from jobs.errors import QuotaExceeded
from jobs.lifecycle import beat_worker, succeed
from jobs.quotas import Limits
from jobs.service import get, submit
from tests.support.attempts import ANN, BOB, submitted
from tests.support.invariants import check_invariants
from tests.support.specs import make_spec

ONE = Limits(running=1, queued=None)


def take(db: Database, limits: Limits = ONE) -> Claim | None:
    return claim(db, worker_id="w", queues=["default"], lease_seconds=60, limits=limits)


def allow(db: Database, owner: str, **values: int) -> None:
    quotas.set_quota(db, OPERATOR, owner, QuotaRequest(**values), Limits())


def test_a_claim_passes_over_an_owner_who_runs_enough(database: Database) -> None:
    first, second = submitted(database), submitted(database)
    theirs = submitted(database, BOB)
    held = take(database)
    assert held is not None
    assert held.lease.job_id == first
    passed = take(database)
    assert passed is not None
    assert passed.lease.job_id == theirs
    assert take(database) is None
    succeed(database, held.lease)
    freed = take(database)
    assert freed is not None
    assert freed.lease.job_id == second


def test_an_override_counts_instead_of_the_default(database: Database) -> None:
    for _ in range(4):
        submitted(database)
    allow(database, "ann", max_running_jobs=3)
    assert [take(database) is not None for _ in range(4)] == [True, True, True, False]
    submitted(database, BOB)
    allow(database, "bob", max_running_jobs=0)
    assert take(database) is None
    allow(database, "bob", max_running_jobs=1)
    assert take(database) is not None
    check_invariants(database)


def test_workers_that_claim_at_once_stay_within_the_quota(database: Database) -> None:
    for _ in range(8):
        submitted(database)
    limits = Limits(running=3)
    with ThreadPoolExecutor(8) as pool:
        held = [found for found in pool.map(lambda _: take(database, limits), range(16)) if found]
    # A worker that lost the last place asks again at its next poll.
    held += [found for found in (take(database, limits) for _ in range(3)) if found]
    assert len(held) == 3
    check_invariants(database)


def test_submits_at_once_stay_within_the_quota(database: Database) -> None:
    def one(_: int) -> bool:
        try:
            submit(database, ANN, make_spec(), roots=[], limits=Limits(queued=3))
        except QuotaExceeded:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(one, range(12))) == 3
    assert quotas.quota(database, "ann", Limits()).queued_jobs.used == 3


def test_a_refused_submit_leaves_nothing_behind(database: Database) -> None:
    with pytest.raises(QuotaExceeded):
        submit(database, ANN, make_spec(), roots=[], request_id="r", limits=Limits(queued=0))
    job, created = submit(database, ANN, make_spec(), roots=[], request_id="r", limits=Limits(queued=1))
    assert created
    assert job.state == "queued"


def test_a_job_that_waits_for_its_owners_quota_says_so(database: Database) -> None:
    def alive(worker_id: str, most: int | None) -> None:
        facts = {"host": "h", "metrics_url": None, "slots": 1, "busy": 0, "queues": ["default"]}
        beat_worker(database, worker_id, **facts, max_running_jobs=most)

    def reason() -> str:
        job = get(database, ANN, waiting)
        assert job.queue is not None
        return job.queue.reason

    submitted(database)
    waiting = submitted(database)
    alive("w", 1)
    assert reason() == "waiting for a free worker"
    assert take(database) is not None
    assert reason() == "1 of your jobs are running, which is your quota"
    allow(database, "ann", max_running_jobs=2)
    assert reason() == "waiting for a free worker"
    allow(database, "ann")
    alive("other", None)
    assert reason() == "waiting for a free worker"
    allow(database, "ann", max_running_jobs=1)
    assert "quota" in reason()
