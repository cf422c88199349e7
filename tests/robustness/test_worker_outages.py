"""The servers that a worker leans on go away and come back."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs import service
from jobs.auth import LOCAL
from jobs.states import JobState
from tests.support.databases import migrate_url
from tests.support.invariants import check_invariants
from tests.support.servers import Postgres, Redis, wait_until
from tests.support.workers import Stack, stack, submit_script, wait_for_state, wait_for_step
from worker.app import create_app
from worker.settings import WorkerSettings
from worker.tasks import wake

pytestmark = pytest.mark.slow


@pytest.fixture
def own_redis() -> Iterator[Redis]:
    """A Redis of this test's own, not yet started."""
    server = Redis()
    yield server
    server.close()


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """A PostgreSQL of this test's own that keeps what it confirmed."""
    server = Postgres(durable=True)
    server.start()
    yield server
    server.close()


def run_all(installed: Stack, jobs: list[str]) -> None:
    for job_id in jobs:
        job = wait_for_state(installed.db, job_id, seconds=60)
        assert (job.state, job.attempt) == (JobState.SUCCEEDED, 1), installed.logs()
    check_invariants(installed.db, ended=True)


def test_without_its_broker_a_worker_still_works(sqlite_url: str, own_redis: Redis, tmp_path: Path) -> None:
    with stack(tmp_path / "home", sqlite_url, own_redis.url) as installed:
        jobs = [submit_script(installed.db) for _ in range(3)]
        worker = installed.start_worker(poll_seconds=60)
        relay = installed.start_relay()
        run_all(installed, jobs)
        # The poll that found those jobs comes once a minute: only a wake-up can start the next one in time.
        own_redis.start()
        jobs.append(submit_script(installed.db))
        run_all(installed, jobs)
        own_redis.stop()
        began = time.monotonic()
        for process in (relay, worker):
            process.send_signal(signal.SIGTERM)
        assert (relay.wait(10), worker.wait(20)) == (0, 0), installed.logs()
        assert time.monotonic() - began < 15


def test_a_broker_that_forgets_and_restarts_loses_no_job(sqlite_url: str, own_redis: Redis, tmp_path: Path) -> None:
    own_redis.start()
    with stack(tmp_path / "home", sqlite_url, own_redis.url) as installed:
        installed.start_worker(slots=3, poll_seconds=1)
        installed.start_relay()
        jobs = []
        for _ in range(3):
            jobs += [submit_script(installed.db, step_seconds=0.05) for _ in range(3)]
            own_redis.flush()
            own_redis.stop()
            jobs += [submit_script(installed.db, step_seconds=0.05)]
            own_redis.start()
        run_all(installed, jobs)


def test_doubled_wake_ups_run_a_job_once(sqlite_url: str, redis_url: str, tmp_path: Path) -> None:
    with stack(tmp_path / "home", sqlite_url, redis_url) as installed:
        workers = [installed.start_worker(worker_id=name, slots=2) for name in ("a", "b")]
        jobs = [submit_script(installed.db) for _ in range(6)]
        app = create_app(WorkerSettings(home=tmp_path, broker_url=redis_url), publisher=True)
        for _ in range(20):
            for job_id in reversed(jobs):
                wake(app, job_id, "default")
        run_all(installed, jobs)
        assert {service.get(installed.db, LOCAL, job_id).attempt for job_id in jobs} == {1}
        assert [worker.poll() for worker in workers] == [None, None]


def test_a_silent_broker_does_not_hold_up_the_relay(sqlite_url: str, tmp_path: Path) -> None:
    """A broker that accepts connections and never answers: the relay must neither hang nor end."""
    with (
        socket.create_server(("127.0.0.1", 0)) as black_hole,
        stack(tmp_path / "home", sqlite_url, f"redis://127.0.0.1:{black_hole.getsockname()[1]}/0") as installed,
    ):
        job_id = submit_script(installed.db)
        relay = installed.start_relay()
        wait_until(lambda: "cannot publish" in installed.logs(), 60, installed.logs)
        assert service.get(installed.db, LOCAL, job_id).state is JobState.QUEUED
        relay.send_signal(signal.SIGTERM)
        assert relay.wait(15) == 0


def test_a_database_that_restarts_costs_no_attempt(own_postgres: Postgres, tmp_path: Path) -> None:
    url = own_postgres.create_database("ppo")
    migrate_url(url)
    with stack(tmp_path / "home", url) as installed:
        installed.start_worker(lease_seconds=20, fence_seconds=15)
        job_id = submit_script(installed.db, steps=40, step_seconds=0.05)
        for step in (3, 15):
            wait_for_step(installed.db, job_id, step)
            own_postgres.stop()
            time.sleep(0.5)
            own_postgres.start()
        run_all(installed, [job_id])
