"""With a mechanism switched off, the check that it is there for must fail: else the other tests here prove nothing.

Each control runs the same scenario twice, with the mechanism and without it.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import pytest

from jobs.db import Database
from jobs.errors import LeaseLost, Unavailable
from jobs.lifecycle import due_wakeups, fail, reap, record_step, succeed
from ppo_engine.rundir import RunDir
from tests.support.attempts import ERROR, claimed, record_steps, step, submitted
from tests.support.invariants import violations
from tests.support.sabotage import deferred_transactions, without_fence, without_state_guard
from tests.support.servers import wait_until
from tests.support.stale_writes import stale_writes, watch
from tests.support.workers import Stack, engine_pids, freeze, stack, submit_script, wait_for_state, wait_for_step

SHORT_LEASE = {"lease_seconds": 2.5, "fence_seconds": 2.0}


def write_as_a_former_holder(db: Database) -> None:
    """The lease goes to another attempt; then the first one reports a step, as a thawed worker would."""
    job_id = submitted(db)
    old = claimed(db, lease_seconds=-1)
    record_steps(db, old, 1, 2)
    reap(db)
    new = claimed(db, job_id, worker_id="w2")
    record_steps(db, new, 1, 3)
    with suppress(LeaseLost):
        record_step(db, old.lease, step(4))


def fail_after_the_end(db: Database) -> None:
    """A holder that has said how its job ended says something else."""
    held = claimed(db, submitted(db))
    succeed(db, held.lease)
    with suppress(LeaseLost):
        fail(db, held.lease, ERROR)


@pytest.mark.parametrize(
    ("scenario", "sabotage", "broken"),
    [
        (write_as_a_former_holder, without_fence, {"I4"}),
        (fail_after_the_end, without_state_guard, {"I1", "I6", "I8"}),
    ],
    ids=["fence", "state guard"],
)
def test_without_its_guard_a_row_breaks_an_invariant(
    database: Database,
    scenario: Callable[[Database], None],
    sabotage: Callable[[], AbstractContextManager[None]],
    broken: set[str],
) -> None:
    watch(database)
    scenario(database)
    assert (violations(database), stale_writes(database)) == ([], 0)
    with sabotage():
        scenario(database)
    assert {found.split()[1] for found in violations(database)} >= broken
    assert stale_writes(database) > 0


def refused_transactions(url: str, *, threads: int = 4, rounds: int = 25) -> int:
    """How many transactions that read before they write were refused, with several at once."""
    db = Database(url)

    def work(_: int) -> int:
        refused = 0
        for _round in range(rounds):
            try:
                submitted(db)
                due_wakeups(db, every_seconds=0)
            except Unavailable:
                refused += 1
        return refused

    with ThreadPoolExecutor(threads) as pool:
        found = sum(pool.map(work, range(threads)))
    db.dispose()
    return found


def test_deferred_transactions_of_sqlite_are_refused_under_load(sqlite_url: str) -> None:
    assert refused_transactions(sqlite_url) == 0
    with deferred_transactions():
        assert refused_transactions(sqlite_url) > 0


@pytest.mark.slow
def test_a_checkpoint_named_before_it_is_complete_is_found_damaged(tmp_path: Path) -> None:
    """A process is killed at every flush of a save: whatever bears a checkpoint's name afterwards is whole."""
    points, damaged = crashes(tmp_path / "atomic")
    assert points > 5
    assert damaged == []
    points, damaged = crashes(tmp_path / "careless", "careless")
    assert points > 5
    assert damaged


def crashes(folder: Path, *how: str) -> tuple[int, list[str]]:
    """At how many points a save was killed, and the checkpoints that bear their name and are damaged."""
    from ppo_engine import checkpoint
    from ppo_engine.errors import CheckpointCorrupt

    command = [sys.executable, "-m", "tests.support.crashing_saves", str(folder), *how]
    points = int(subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout)
    damaged = []
    for point in range(1, points + 1):
        run = RunDir(folder / str(point))
        for saved in run.saved_checkpoints():
            try:
                checkpoint.verify(saved)
            except CheckpointCorrupt as error:
                damaged.append(f"{point}: {error}")
        assert checkpoint.newest_valid(run) is not None, "the checkpoint before is still there"
    return points, damaged


@pytest.mark.slow
def test_without_a_fence_a_thawed_worker_writes_over_its_successor(sqlite_url: str, tmp_path: Path) -> None:
    """The twin of `test_frozen_workers_write_nothing_when_they_thaw`, with real processes."""
    with stack(tmp_path / "home", sqlite_url) as installed:
        watch(installed.db)
        workers = [start_unfenced(installed, name) for name in ("a", "b")]
        job_id = submit_script(installed.db, steps=100, step_seconds=0.05)
        wait_for_step(installed.db, job_id, 5)
        (engine,) = engine_pids(installed.run_dir(job_id))
        frozen = next(worker for worker in workers if parent_of(engine) == worker.pid)
        freeze(frozen, installed)  # its engine goes on, whose lines wait in the pipe
        wait_for_state(installed.db, job_id, seconds=60)
        assert (violations(installed.db), stale_writes(installed.db)) == ([], 0)
        frozen.send_signal(signal.SIGCONT)
        wait_until(lambda: any(" I4 " in found for found in violations(installed.db)), 60, installed.logs)
        assert stale_writes(installed.db) > 0


def start_unfenced(installed: Stack, name: str) -> subprocess.Popen[bytes]:
    return installed.start(["-m", "tests.support.sabotage"], {"worker_id": name, **SHORT_LEASE})


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
