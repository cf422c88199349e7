"""The engine process that waits for a job: what it gives, and that nothing that befalls it costs a job anything."""

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
from tests.support.embedded_service import processes
from tests.support.invariants import check_invariants
from tests.support.servers import wait_until
from tests.support.workers import Stack, process_is_gone, stack, submit_script, wait_for_state, wait_for_step

pytestmark = pytest.mark.slow


@pytest.fixture(params=["embedded", "cluster"])
def installed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stack]:
    """An installation in each profile, whose invariants hold at the end of the test."""
    cluster = request.param == "cluster"
    database_url = request.getfixturevalue("postgres_url" if cluster else "sqlite_url")
    broker_url = request.getfixturevalue("redis_url") if cluster else "memory://"
    with stack(tmp_path / "home", database_url, broker_url) as one:
        yield one
        check_invariants(one.db)


only_embedded = pytest.mark.parametrize("installed", ["embedded"], indirect=True)


def waiting(worker: subprocess.Popen[bytes]) -> list[int]:
    """Children of the worker that were started to wait."""
    return [pid for pid, parent, command in processes() if parent == worker.pid and command.endswith(" wait")]


def wait_for_spare(worker: subprocess.Popen[bytes], installed: Stack) -> int:
    """Its process id, as soon as it has had the time to be where it waits."""
    wait_until(lambda: len(waiting(worker)) == 1, 60, installed.logs)
    (pid,) = waiting(worker)
    wait_until(lambda: "read" in Path(f"/proc/{pid}/wchan").read_text(), 60, installed.logs)
    return pid


def engine_of(installed: Stack, job_id: str) -> int:
    """The process that trained the job."""
    first, *_ = installed.run_dir(job_id).log(1).read_text().splitlines()
    return int(first.removeprefix("process "))


def succeeded_at_first(installed: Stack, job_id: str) -> None:
    job = wait_for_state(installed.db, job_id)
    assert (job.state, job.attempt) == (JobState.SUCCEEDED, 1), (job.error, installed.logs())


def test_a_job_runs_in_the_waiting_process_and_then_another_waits(installed: Stack) -> None:
    worker = installed.start_worker(warm_engine=True)
    spare = wait_for_spare(worker, installed)
    job_id = submit_script(installed.db, steps=10_000, step_seconds=0.05)
    wait_for_step(installed.db, job_id, 20)
    assert waiting(worker) == [spare], "the one that trains; no other one while the only slot is taken"
    service.cancel(installed.db, LOCAL, job_id)
    assert wait_for_state(installed.db, job_id).state is JobState.CANCELLED
    assert engine_of(installed, job_id) == spare
    assert wait_for_spare(worker, installed) != spare
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(20) == 0, installed.logs()
    assert waiting(worker) == []


@only_embedded
def test_it_has_the_environment_of_its_slot_and_nothing_of_the_services(installed: Stack) -> None:
    worker = installed.start_worker(warm_engine=True, engine_threads=3)
    spare = wait_for_spare(worker, installed)
    environment = Path(f"/proc/{spare}/environ").read_text().split("\0")
    assert "OMP_NUM_THREADS=3" in environment
    assert not [entry for entry in environment if entry.startswith("PPO_")]
    assert os.getpgid(spare) == spare, "a group of its own"


@only_embedded
def test_two_jobs_at_once_share_nothing(installed: Stack) -> None:
    worker = installed.start_worker(warm_engine=True, slots=2)
    spare = wait_for_spare(worker, installed)
    crashing = submit_script(installed.db, fault="exit_7", at=3, always=True, overrides={"retry": {"max_attempts": 1}})
    other = submit_script(installed.db, steps=20)
    succeeded_at_first(installed, other)
    job = wait_for_state(installed.db, crashing)
    assert job.error is not None
    assert (job.error.code, job.error.exit_code) == ("engine_crashed", 7)
    assert spare in {engine_of(installed, crashing), engine_of(installed, other)}
    assert engine_of(installed, crashing) != engine_of(installed, other)
    log = installed.run_dir(crashing).log(1).read_text()
    assert "something went wrong here" in log
    assert "hf_abcdefghijklmnop" not in log
    assert worker.poll() is None


def test_one_that_was_killed_while_it_waited_costs_nothing(installed: Stack) -> None:
    worker = installed.start_worker(warm_engine=True)
    spare = wait_for_spare(worker, installed)
    os.kill(spare, signal.SIGKILL)
    wait_until(lambda: process_is_gone(spare), 60, installed.logs)
    job_id = submit_script(installed.db)
    succeeded_at_first(installed, job_id)
    assert engine_of(installed, job_id) != spare


def test_one_that_is_killed_as_it_takes_the_job_costs_nothing(installed: Stack) -> None:
    worker = installed.start_worker(warm_engine=True)
    spare = wait_for_spare(worker, installed)
    os.kill(spare, signal.SIGSTOP)
    job_id = submit_script(installed.db)
    wait_until(lambda: installed.run_dir(job_id).log(1).exists(), 60, installed.logs)
    time.sleep(0.3)  # the line is in its pipe, and it will not read it
    os.kill(spare, signal.SIGKILL)
    succeeded_at_first(installed, job_id)
    assert engine_of(installed, job_id) != spare
    assert "the waiting engine did not begin" in installed.logs()


@only_embedded
def test_cancel_does_not_wait_for_one_that_is_stuck(installed: Stack) -> None:
    worker = installed.start_worker(warm_engine=True)
    spare = wait_for_spare(worker, installed)
    os.kill(spare, signal.SIGSTOP)
    job_id = submit_script(installed.db)
    wait_until(lambda: installed.run_dir(job_id).log(1).exists(), 60, installed.logs)
    service.cancel(installed.db, LOCAL, job_id)
    assert wait_for_state(installed.db, job_id).state is JobState.CANCELLED
    assert process_is_gone(spare)


def test_it_does_not_outlive_a_killed_worker(installed: Stack) -> None:
    worker = installed.start_worker(warm_engine=True)
    spare = wait_for_spare(worker, installed)
    worker.send_signal(signal.SIGKILL)
    wait_until(lambda: process_is_gone(spare), 60, lambda: "it waits for nobody")
