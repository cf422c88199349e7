"""Faults in numbers: few in `make test`, the full counts of the reliability targets in `make robustness`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from jobs import fleet, service
from jobs.auth import LOCAL
from jobs.states import JobState
from ppo_engine.rundir import RunDir
from tests.support import crashing_saves
from tests.support.fault_runs import settle
from tests.support.fault_table import chance, count, row
from tests.support.http_api import process_on
from tests.support.servers import Redis, free_port, wait_until
from tests.support.specs import spec_document
from tests.support.stale_writes import watch
from tests.support.tcp_proxy import Proxy
from tests.support.workers import LONG_LEASE, Stack, stack, submit_script, wait_for_state

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def script(**values: Any) -> dict[str, Any]:
    return spec_document(prompts={"inline": [json.dumps(values)]})


class DyingApi:
    """A front door that dies of its first submit; it takes seconds to start, so the next one starts meanwhile."""

    def __init__(self, installed: Stack) -> None:
        self.installed, self.port = installed, free_port()
        doors = {"http_port": self.port, "grpc_port": free_port()}
        self.process = installed.start(["-m", "tests.support.dying_api"], doors)

    def submit(self) -> None:
        """One submit, whose answer never comes."""
        wait_until(self._died, 60, self.installed.logs)
        assert self.process.wait(10) == -9

    def _died(self) -> bool:
        try:
            httpx.post(f"http://127.0.0.1:{self.port}/v1/jobs", json=script(), timeout=60)
        except httpx.ConnectError:
            assert self.process.poll() is None, self.installed.logs()
            return False
        except httpx.TransportError:
            return True
        raise AssertionError("it answered")


def test_a_job_that_was_committed_and_never_answered_runs(sqlite_url: str, redis_url: str, tmp_path: Path) -> None:
    """The worker hardly polls: the wake-up that starts the job was published by another process."""
    table = row("API killed between commit and publish")
    with stack(tmp_path / "home", sqlite_url, redis_url) as installed:
        watch(installed.db)
        installed.start_worker(poll_seconds=600, **LONG_LEASE)
        installed.start_relay()
        jobs = [submit_script(installed.db)]
        wait_for_state(installed.db, jobs[0], seconds=60)  # from here on the first poll of the worker is over
        apis = [DyingApi(installed)]
        for left in reversed(range(count(2, 50))):
            dying = apis.pop()
            if left:
                apis.append(DyingApi(installed))
            dying.submit()
            began = time.monotonic()
            (new,) = {job.id for job in service.list_jobs(installed.db, LOCAL, page_size=500).items} - set(jobs)
            jobs.append(new)
            wait_for_state(installed.db, new, seconds=60)
            table.recovery_seconds.append(time.monotonic() - began)
            table.injected += 1
        settle(installed, jobs, table, once=True)


def test_a_black_hole_for_a_broker_holds_up_no_submit(sqlite_url: str, tmp_path: Path) -> None:
    table, broker = row("broker black-holed during submits"), Redis()
    broker.start()
    proxy = Proxy(broker.port, black=True)
    with stack(tmp_path / "home", sqlite_url, f"redis://127.0.0.1:{proxy.port}/0") as installed:
        watch(installed.db)
        installed.start_relay(rewake_seconds=2)
        jobs, slowest = [], 0.0
        with process_on(installed.home, sqlite_url) as door, httpx.Client(base_url=door.http, timeout=60) as client:
            for _ in range(count(20, 200)):
                began = time.monotonic()
                jobs.append(client.post("/v1/jobs", json=script(step_seconds=0)).raise_for_status().json()["id"])
                slowest = max(slowest, time.monotonic() - began)
        table.injected = len(jobs)
        assert slowest < 5, "no submit waits for a broker's timeout"
        proxy.black, began = False, time.monotonic()
        installed.start_worker(slots=4, poll_seconds=1, **LONG_LEASE)
        settle(installed, jobs, table, once=True, seconds=120)
        table.recovery_seconds.append(time.monotonic() - began)
    proxy.close()
    broker.close()


@pytest.mark.parametrize("how", ["truncated", "bit flipped"])
def test_a_damaged_checkpoint_is_passed_over(sqlite_url: str, tmp_path: Path, how: str) -> None:
    """A paused job loses its newest checkpoint and goes on from the one before, to the same weights."""
    table, dice = row(f"checkpoint {how}"), chance(how)
    with stack(tmp_path / "home", sqlite_url) as installed:
        watch(installed.db)
        installed.start_worker(slots=4, **LONG_LEASE)
        jobs = [submit_script(installed.db, fault="pause", at=3) for _ in range(count(3, 50))]
        for job_id in jobs:
            wait_for_state(installed.db, job_id, JobState.PAUSED, seconds=60)
            state = installed.run_dir(job_id).saved_checkpoints()[0] / "state.json"
            content = bytearray(state.read_bytes())
            place = dice.randrange(len(content))
            content[place] ^= 1 << dice.randrange(8)
            state.write_bytes(content if how == "bit flipped" else content[:place])
            began = time.monotonic()
            service.resume(installed.db, LOCAL, job_id)
            table.injected += 1
            wait_for_state(installed.db, job_id, seconds=60)
            table.recovery_seconds.append(time.monotonic() - began)
            told = [event.type for event in service.events(installed.db, LOCAL, job_id)]
            assert "checkpoint_discarded" in told, told
        settle(installed, jobs, table, once=False, steps=6)


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux's own error: one file of the checkpoint lies on a device that is always full."""
    from ppo_engine import checkpoint
    from ppo_engine.errors import DiskFull

    table, run = row("disk full while a checkpoint is saved"), RunDir(tmp_path)
    crashing_saves.save(run, 10)
    monkeypatch.setattr(
        crashing_saves, "_write_model", lambda folder: (folder.parent / "state.json").symlink_to("/dev/full")
    )
    for step in range(20, 20 + count(3, 100)):
        with pytest.raises(DiskFull):
            crashing_saves.save(run, step)
        table.injected += 1
        assert [path.name for path in run.checkpoints.iterdir()] == ["step-00000010-1"]
        checkpoint.verify(run.checkpoint(10, 1))


def test_workers_that_are_replaced_one_by_one_lose_no_job(sqlite_url: str, tmp_path: Path) -> None:
    """With one attempt allowed, a shutdown that charged one would fail its job."""
    table = row("rolling SIGTERM of all workers")
    with stack(tmp_path / "home", sqlite_url) as installed:
        watch(installed.db)
        workers = [installed.start_worker(slots=2, **LONG_LEASE) for _ in range(2)]
        once = {"retry": {"max_attempts": 1}}
        jobs = [submit_script(installed.db, step_seconds=0.2, overrides=once) for _ in range(count(6, 50))]
        for _ in range(count(1, 5)):
            for place, worker in enumerate(workers):
                wait_until(lambda: len(fleet.workers(installed.db)) == len(workers), 60, installed.logs)
                wait_until(lambda: any_runs(installed), 60, installed.logs)
                worker.terminate()
                began = time.monotonic()
                assert worker.wait(60) == 0, installed.logs()
                table.recovery_seconds.append(time.monotonic() - began)
                workers[place] = installed.start_worker(slots=2, **LONG_LEASE)
                table.injected += 1
        settle(installed, jobs, table, once=False, seconds=120, steps=6)


def any_runs(installed: Stack) -> bool:
    jobs = service.list_jobs(installed.db, LOCAL, page_size=500).items
    return any(job.state is JobState.RUNNING for job in jobs) or all(job.done for job in jobs)
