"""Workers that are killed or frozen at moments nobody chose, in both profiles, and what the others make of it."""

from __future__ import annotations

import random
import signal
import subprocess
import time

import pytest

from jobs import service
from jobs.auth import LOCAL
from jobs.states import TERMINAL
from tests.support.fault_runs import held_by, holders, settle
from tests.support.fault_table import Row, chance, count, row
from tests.support.servers import wait_until
from tests.support.workers import Stack, engine_pids, freeze, process_is_gone, submit_script

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

STEPS = 20
SCRIPT = {"steps": STEPS, "step_seconds": 0.05}
SHORT_LEASE = {"lease_seconds": 2.5, "fence_seconds": 2.0, "slots": 6}
PATIENT = {"retry": {"max_attempts": 100}}
AT_ONCE = 3


class Crew:
    """Two workers, of which one is replaced when it is lost."""

    def __init__(self, installed: Stack) -> None:
        self.installed = installed
        self.hired = 0
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for _ in range(2):
            self.hire()

    def hire(self) -> None:
        """Start a worker with a name that no other had."""
        self.hired += 1
        name = f"w{self.hired}"
        self.processes[name] = self.installed.start_worker(worker_id=name, **SHORT_LEASE)

    def pick(self, dice: random.Random) -> str:
        """The name of a worker that holds a job, at a moment of its run that the dice choose."""
        wait_until(lambda: bool(holders(self.installed.db)), 60, self.installed.logs)
        time.sleep(dice.uniform(0, STEPS * SCRIPT["step_seconds"]))
        return dice.choice(holders(self.installed.db) or list(self.processes))


def submit_some(installed: Stack) -> list[str]:
    return [submit_script(installed.db, **SCRIPT, overrides=PATIENT) for _ in range(AT_ONCE)]


def claims(installed: Stack, job_id: str) -> int:
    return service.get(installed.db, LOCAL, job_id).attempt


def wait_for_others(installed: Stack, victims: dict[str, int], since: float, table: Row) -> None:
    """Wait until each victim, with the number of its lost attempt, is claimed again."""
    for job_id, lost in victims.items():
        wait_until(lambda job_id=job_id, lost=lost: claims(installed, job_id) > lost, 60, installed.logs)
        table.recovery_seconds.append(time.monotonic() - since)


def wait_for_their_end(installed: Stack, jobs: list[str]) -> None:
    def done() -> bool:
        return all(service.get(installed.db, LOCAL, job_id).state in TERMINAL for job_id in jobs)

    wait_until(done, 60, installed.logs)


def test_killed_workers_lose_their_jobs_to_others_and_no_weight_differs(installed: Stack) -> None:
    """A kill counts when it hit a job; its engines must be gone before anybody else goes on."""
    database = installed.database
    table, engines = row(f"worker killed (SIGKILL), {database}"), row(f"supervisor killed: its engines end, {database}")
    dice, crew, jobs = chance(f"kill {database}"), Crew(installed), []
    while table.injected < count(1, 10):
        jobs += (new := submit_some(installed))
        name = crew.pick(dice)
        orphans = [pid for job_id in held_by(installed.db, name) for pid in engine_pids(installed.run_dir(job_id))]
        killed, began = crew.processes.pop(name), time.monotonic()
        killed.kill()
        killed.wait()
        victims = {job_id: claims(installed, job_id) for job_id in held_by(installed.db, name)}
        crew.hire()
        for pid in orphans:
            wait_until(lambda pid=pid: process_is_gone(pid), 60, lambda: "an orphan trains on")
            engines.recovery_seconds.append(time.monotonic() - began)
            engines.injected += 1
        wait_for_others(installed, victims, began, table)
        table.injected += bool(victims)
        wait_for_their_end(installed, new)
    settle(installed, jobs, table, once=False, steps=STEPS)
    engines.jobs, engines.stale = table.jobs, table.stale


def test_frozen_workers_write_nothing_when_they_thaw(installed: Stack) -> None:
    """Stopped past their lease, and thawed while the successor trains or after it has ended the job."""
    database = installed.database
    table = row(f"worker stopped past its lease, {database}")
    dice, crew, jobs = chance(f"freeze {database}"), Crew(installed), []
    while table.injected < count(1, 8):
        jobs += (new := submit_some(installed))
        name = crew.pick(dice)
        freeze(crew.processes[name], installed)
        began = time.monotonic()
        victims = {job_id: claims(installed, job_id) for job_id in held_by(installed.db, name)}
        wait_for_others(installed, victims, began, table)
        if dice.random() < 0.5:
            time.sleep(dice.uniform(0, STEPS * SCRIPT["step_seconds"]))
        else:
            wait_for_their_end(installed, new)
        told = {job_id: service.events(installed.db, LOCAL, job_id) for job_id in new if is_over(installed, job_id)}
        crew.processes[name].send_signal(signal.SIGCONT)
        table.injected += bool(victims)
        wait_for_their_end(installed, new)
        for job_id in new:
            wait_until(lambda job_id=job_id: not engine_pids(installed.run_dir(job_id)), 60, installed.logs)
        for job_id, before in told.items():
            assert service.events(installed.db, LOCAL, job_id) == before
    settle(installed, jobs, table, once=False, steps=STEPS)
    assert [process.poll() for process in crew.processes.values()] == [None, None], installed.logs()
    assert "the lease was lost" in installed.logs()


def is_over(installed: Stack, job_id: str) -> bool:
    return service.get(installed.db, LOCAL, job_id).done
