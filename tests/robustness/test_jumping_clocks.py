"""A worker's wall clock may jump: leases and watchdogs go by the database's clock, and by those that never do."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.fault_runs import settle
from tests.support.fault_table import count, row
from tests.support.source_tree import ROOT
from tests.support.workers import LONG_LEASE, Stack, submit_script

pytestmark = pytest.mark.slow


def test_a_wall_clock_that_jumps_costs_no_attempt(
    installed: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = tmp_path / "jumps"
    monkeypatch.setenv("JUMPS", str(notes))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "tests/support/jumping_clock"), str(ROOT)]))
    table = row(f"a worker's wall clock jumps by an hour, {installed.database}")
    for _ in range(2):
        installed.start_worker(slots=2, **LONG_LEASE)
    # Long enough for a jump each way, by far more than a lease.
    jobs = [submit_script(installed.db, steps=20, step_seconds=0.25) for _ in range(count(2, 12))]
    settle(installed, jobs, table, once=True, steps=20)
    seen = notes.read_text().split()
    assert {"3600", "-3600"} <= set(seen), "the clock did not jump"
    table.injected += sum(one not in ("0", other) for one, other in pairwise(seen))
