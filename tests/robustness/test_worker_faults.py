"""What a worker process survives, and what the others do when it does not: real processes and real signals.

Every test runs in both profiles: SQLite with Celery on `memory://`, PostgreSQL with Redis.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs import service
from jobs.auth import LOCAL
from jobs.states import JobState
from tests.support.invariants import check_invariants
from tests.support.servers import wait_until
from tests.support.workers import (
    Stack,
    engine_pids,
    event_types,
    final_weights,
    freeze,
    stack,
    submit_script,
    wait_for_state,
    wait_for_step,
    weights_after,
)

pytestmark = pytest.mark.slow

STEPS = 20
SCRIPT = {"steps": STEPS, "step_seconds": 0.05}
SHORT_LEASE = {"lease_seconds": 2.5, "fence_seconds": 2.0}


@pytest.fixture(params=["embedded", "cluster"])
def installed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stack]:
    """An installation in each profile, whose invariants hold at the end of the test."""
    cluster = request.param == "cluster"
    database_url = request.getfixturevalue("postgres_url" if cluster else "sqlite_url")
    broker_url = request.getfixturevalue("redis_url") if cluster else "memory://"
    with stack(tmp_path / "home", database_url, broker_url) as one:
        yield one
        check_invariants(one.db)


def start_two(installed: Stack) -> dict[str, subprocess.Popen[bytes]]:
    return {name: installed.start_worker(worker_id=name, **SHORT_LEASE) for name in ("a", "b")}


def holder(installed: Stack, job_id: str) -> str:
    """The worker that claimed the job last."""
    claims = [event for event in service.events(installed.db, LOCAL, job_id) if event.type == "claimed"]
    return str(claims[-1].data["worker_id"])


def test_a_killed_worker_loses_the_job_to_another(installed: Stack) -> None:
    workers = start_two(installed)
    job_id = submit_script(installed.db, **SCRIPT)
    wait_for_step(installed.db, job_id, 5)
    engines = engine_pids(installed.run_dir(job_id))
    assert len(engines) == 1
    killed = holder(installed, job_id)
    workers[killed].send_signal(signal.SIGKILL)
    began = time.monotonic()
    wait_until(lambda: not engine_pids(installed.run_dir(job_id)), 60, lambda: "an orphan trains on")
    wait_until(lambda: "requeued" in event_types(installed.db, job_id), 60, installed.logs)
    assert time.monotonic() - began < SHORT_LEASE["lease_seconds"] + 15
    job = wait_for_state(installed.db, job_id, seconds=60)
    assert (job.state, job.attempt) == (JobState.SUCCEEDED, 2), installed.logs()
    assert holder(installed, job_id) != killed
    assert final_weights(installed.run_dir(job_id)) == weights_after(STEPS)


def test_a_worker_that_is_told_to_end_gives_its_job_back(installed: Stack) -> None:
    workers = start_two(installed)
    job_id = submit_script(installed.db, **SCRIPT, overrides={"retry": {"max_attempts": 1}})
    wait_for_step(installed.db, job_id, 5)
    first = holder(installed, job_id)
    workers[first].send_signal(signal.SIGTERM)
    began = time.monotonic()
    assert workers[first].wait(20) == 0, installed.logs()
    assert time.monotonic() - began < 10
    job = wait_for_state(installed.db, job_id, seconds=60)
    assert job.state is JobState.SUCCEEDED, "with one attempt allowed, a charged one would have failed it"
    assert holder(installed, job_id) != first
    resumed = [event for event in service.events(installed.db, LOCAL, job_id) if event.type == "started"][-1]
    assert resumed.data["step"] > 0, "it went on from the checkpoint of the shutdown"
    assert final_weights(installed.run_dir(job_id)) == weights_after(STEPS)


def test_a_frozen_worker_writes_nothing_when_it_thaws(installed: Stack) -> None:
    workers = start_two(installed)
    job_id = submit_script(installed.db, **SCRIPT)
    wait_for_step(installed.db, job_id, 5)
    frozen = holder(installed, job_id)
    freeze(workers[frozen], installed)
    job = wait_for_state(installed.db, job_id, seconds=60)
    assert (job.state, job.attempt) == (JobState.SUCCEEDED, 2), installed.logs()
    before = service.events(installed.db, LOCAL, job_id)
    workers[frozen].send_signal(signal.SIGCONT)
    wait_until(lambda: not engine_pids(installed.run_dir(job_id)), 60, lambda: "its engine was not ended")
    wait_until(lambda: "the lease was lost" in installed.logs(), 60, installed.logs)
    (other,) = workers.keys() - {frozen}
    workers[other].send_signal(signal.SIGTERM)
    assert workers[other].wait(20) == 0
    assert final_weights(installed.run_dir(job_id)) == weights_after(STEPS)
    last = submit_script(installed.db)
    assert wait_for_state(installed.db, last).state is JobState.SUCCEEDED, "the thawed one works again"
    assert service.events(installed.db, LOCAL, job_id) == before
    assert service.get(installed.db, LOCAL, job_id).etag == job.etag


def test_a_worker_survives_what_its_engines_do(installed: Stack) -> None:
    worker = installed.start_worker(slots=2)
    crashing = {fault: submit_script(installed.db, fault=fault) for fault in ("exit_7", "segfault", "sigkill")}
    failing = submit_script(installed.db, fault="garbage")
    deaf = submit_script(installed.db, steps=10_000, fault="ignore_stop", at=2)
    for fault, job_id in crashing.items():
        job = wait_for_state(installed.db, job_id, seconds=60)
        assert (job.state, job.attempt) == (JobState.SUCCEEDED, 2), (fault, installed.logs())
    assert wait_for_state(installed.db, failing).state is JobState.FAILED
    wait_for_step(installed.db, deaf, 3)
    (engine,) = engine_pids(installed.run_dir(deaf))
    os.kill(engine, signal.SIGKILL)
    wait_for_step(installed.db, deaf, 3)
    service.cancel(installed.db, LOCAL, deaf)
    assert wait_for_state(installed.db, deaf).state is JobState.CANCELLED
    assert worker.poll() is None
    last = submit_script(installed.db)
    assert wait_for_state(installed.db, last).state is JobState.SUCCEEDED
    check_invariants(installed.db, ended=True)


@pytest.mark.parametrize("installed", ["embedded"], indirect=True)
def test_a_second_signal_does_not_wait_for_a_deaf_engine(installed: Stack) -> None:
    worker = installed.start_worker(grace_seconds=100)
    job_id = submit_script(installed.db, steps=10_000, fault="ignore_stop", at=2)
    wait_for_step(installed.db, job_id, 4)
    worker.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        worker.wait(1)
    worker.send_signal(signal.SIGINT)
    assert worker.wait(15) == 0, installed.logs()
    assert service.get(installed.db, LOCAL, job_id).state is JobState.QUEUED
    assert engine_pids(installed.run_dir(job_id)) == []
