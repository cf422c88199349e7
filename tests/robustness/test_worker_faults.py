"""What a worker process survives, and what the others do when it does not: real processes and real signals.

Every test runs in both profiles: SQLite with Celery on `memory://`, PostgreSQL with Redis.
"""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from jobs import service
from jobs.auth import LOCAL
from jobs.states import JobState
from tests.support.invariants import check_invariants
from tests.support.workers import (
    Stack,
    engine_pids,
    final_weights,
    submit_script,
    wait_for_state,
    wait_for_step,
    weights_after,
)

pytestmark = pytest.mark.slow

STEPS = 20
SCRIPT = {"steps": STEPS, "step_seconds": 0.05}
SHORT_LEASE = {"lease_seconds": 2.5, "fence_seconds": 2.0}


def start_two(installed: Stack) -> dict[str, subprocess.Popen[bytes]]:
    return {name: installed.start_worker(worker_id=name, **SHORT_LEASE) for name in ("a", "b")}


def holder(installed: Stack, job_id: str) -> str:
    """The worker that claimed the job last."""
    claims = [event for event in service.events(installed.db, LOCAL, job_id) if event.type == "claimed"]
    return str(claims[-1].data["worker_id"])


def test_a_worker_that_is_told_to_end_gives_its_job_back(installed: Stack) -> None:
    workers = start_two(installed)
    job_id = submit_script(installed.db, **SCRIPT, overrides={"retry": {"max_attempts": 1}})
    wait_for_step(installed.db, job_id, 5)
    first = holder(installed, job_id)
    workers[first].send_signal(signal.SIGTERM)
    assert workers[first].wait(60) == 0, installed.logs()
    job = wait_for_state(installed.db, job_id, seconds=60)
    assert job.state is JobState.SUCCEEDED, "with one attempt allowed, a charged one would have failed it"
    assert holder(installed, job_id) != first
    resumed = [event for event in service.events(installed.db, LOCAL, job_id) if event.type == "started"][-1]
    assert resumed.data["step"] > 0, "it went on from the checkpoint of the shutdown"
    assert final_weights(installed.run_dir(job_id)) == weights_after(STEPS)


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
