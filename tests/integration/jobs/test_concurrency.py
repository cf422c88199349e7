"""Many processes and threads on one database: one winner of every race, nothing lost, nothing locked."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import pytest

from jobs.db import Database
from jobs.errors import LeaseLost
from jobs.lifecycle import claim, due_wakeups, heartbeat, reap, record_step, requeue, succeed
from jobs.service import get, list_jobs, submit
from jobs.states import JobState
from tests.support.attempts import ANN, claimed, record_steps, record_steps_and_checkpoint, step, submitted
from tests.support.invariants import check_invariants
from tests.support.specs import make_spec

pytestmark = pytest.mark.slow

_SPAWN = multiprocessing.get_context("spawn")
_WORKERS = 4


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    """Processes that start once for all tests here."""
    with ProcessPoolExecutor(_WORKERS, mp_context=_SPAWN) as processes:
        yield processes


def at_once(pool: ProcessPoolExecutor, work: Callable[..., Any], url: str) -> list[Any]:
    """Results of `work(url, index)` in all processes."""
    return list(pool.map(work, [url] * _WORKERS, range(_WORKERS)))


def claim_everything(url: str, index: int) -> list[tuple[str, int]]:
    """Claim until nothing is left."""
    db, found = Database(url), []
    while (held := claim(db, worker_id=f"w{index}", queues=["default"], lease_seconds=60)) is not None:
        found.append((held.lease.job_id, held.lease.token))
    db.dispose()
    return found


def test_racing_claimers_get_every_job_exactly_once(pool: ProcessPoolExecutor, database_url: str) -> None:
    db = Database(database_url)
    ids = [submitted(db) for _ in range(40)]
    taken = [item for found in at_once(pool, claim_everything, database_url) for item in found]
    assert sorted(taken) == [(job_id, 1) for job_id in sorted(ids)]
    check_invariants(db)
    db.dispose()


def test_twins_of_one_request_make_one_job(database: Database) -> None:
    def send(_: int) -> tuple[str, bool]:
        view, created = submit(database, ANN, make_spec(), roots=[], request_id="same")
        return view.id, created

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(send, range(16)))
    assert len({job_id for job_id, _ in answers}) == 1
    assert [created for _, created in answers].count(True) == 1


def test_a_wake_up_is_given_to_one_relay(database: Database) -> None:
    ids = [submitted(database) for _ in range(30)]
    with ThreadPoolExecutor(6) as pool:
        given = list(pool.map(lambda _: due_wakeups(database, every_seconds=3600, limit=7), range(12)))
    assert Counter(job_id for found in given for job_id, _ in found) == Counter(ids)


def test_reapers_and_heartbeats_race_without_harm(database: Database) -> None:
    """Whoever comes second finds that the job is no longer what it was."""
    for _ in range(8):
        submitted(database)
    leases = [claimed(database, lease_seconds=-1).lease for _ in range(8)]

    def beat(lease: Any) -> bool:
        try:
            heartbeat(database, lease, lease_seconds=60)
        except LeaseLost:
            return False
        return True

    with ThreadPoolExecutor(12) as pool:
        reaped = [pool.submit(reap, database) for _ in range(4)]
        kept = {lease.job_id for lease, alive in zip(leases, pool.map(beat, leases), strict=True) if alive}
    lost = [job_id for future in reaped for job_id in future.result()]
    assert sorted([*kept, *lost]) == sorted(lease.job_id for lease in leases)
    assert all(get(database, ANN, job_id).state is JobState.RUNNING for job_id in kept)
    check_invariants(database)


def mixed_load(url: str, index: int) -> int:
    """What a worker and a front door do, as fast as they can; returns how many jobs this process ended."""
    db, ended = Database(url), 0
    for turn in range(12):
        submitted(db, ppo__steps=3)
        list_jobs(db, ANN, page_size=5)
        reap(db)
        held = claim(db, worker_id=f"w{os.getpid()}", queues=["default"], lease_seconds=60)
        if held is None:
            continue
        if held.checkpoint is None:
            record_steps_and_checkpoint(db, held, 1, 2)
        if (turn + index) % 3 == 0:
            requeue(db, held.lease, error=None, charge=False)
            continue
        record_step(db, held.lease, step(3))
        succeed(db, held.lease)
        ended += 1
    db.dispose()
    return ended


def test_mixed_load_of_many_processes_fails_nowhere(pool: ProcessPoolExecutor, database_url: str) -> None:
    """An error in any process, such as SQLite's 'database is locked', would come out of the pool."""
    ended = sum(at_once(pool, mixed_load, database_url))
    db = Database(database_url)
    states = [view.state for view in list_jobs(db, ANN, page_size=500).items]
    assert len(states) == 12 * _WORKERS
    assert states.count(JobState.SUCCEEDED) == ended
    check_invariants(db)
    db.dispose()


def test_a_stale_holder_among_threads_writes_nothing(database: Database) -> None:
    """The old and the new holder report the same steps at once: only the new one's are stored."""
    job_id = submitted(database)
    old = claimed(database, lease_seconds=-1)
    reap(database)
    new = claimed(database, job_id, worker_id="w2")

    def report_as_old(number: int) -> bool:
        try:
            record_step(database, old.lease, step(number, **{"ppo/mean_scores": -1.0}))
        except LeaseLost:
            return True
        return False

    with ThreadPoolExecutor(6) as pool:
        refused = pool.map(report_as_old, [1, 2, 3, 4, 5] * 4)
        record_steps(database, new, 1, 5)
        assert all(refused)
    assert get(database, ANN, job_id).latest_metrics["ppo/mean_scores"] == 0.5
    check_invariants(database)
