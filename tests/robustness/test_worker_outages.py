"""The servers that a worker leans on go away and come back."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest

from jobs import service
from jobs.auth import LOCAL
from jobs.states import JobState
from tests.support.invariants import check_invariants
from tests.support.servers import Redis, wait_until
from tests.support.workers import LONG_LEASE, Stack, stack, submit_script, wait_for_state

pytestmark = pytest.mark.slow


def run_all(installed: Stack, jobs: list[str]) -> None:
    for job_id in jobs:
        job = wait_for_state(installed.db, job_id, seconds=60)
        assert (job.state, job.attempt) == (JobState.SUCCEEDED, 1), installed.logs()
    check_invariants(installed.db, ended=True)


def test_without_its_broker_a_worker_still_works(sqlite_url: str, own_redis: Redis, tmp_path: Path) -> None:
    with stack(tmp_path / "home", sqlite_url, own_redis.url) as installed:
        jobs = [submit_script(installed.db) for _ in range(3)]
        worker = installed.start_worker(poll_seconds=60, **LONG_LEASE)
        relay = installed.start_relay()
        run_all(installed, jobs)
        # The poll that found those jobs comes once a minute: only a wake-up can start the next one in time.
        own_redis.start()
        jobs.append(submit_script(installed.db))
        run_all(installed, jobs)
        own_redis.stop()
        for process in (relay, worker):
            process.send_signal(signal.SIGTERM)
        assert (relay.wait(60), worker.wait(60)) == (0, 0), installed.logs()


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
        assert relay.wait(60) == 0
