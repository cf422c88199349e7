"""How often each fault was injected and what came of it: printed, and written as JSON where PPO_FAULT_TABLE says."""

from __future__ import annotations

import json
import os
import platform
import random
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

FULL = os.environ.get("PPO_FAULT_COUNTS") == "full"
SEED = int(os.environ.get("PPO_FAULT_SEED") or random.randrange(10**6))
"""Replays a run's choices."""


def count(few: int, full: int) -> int:
    """How often to inject a fault: few times in `make test`, the full count in `make robustness`."""
    return full if FULL else few


def chance(name: str) -> random.Random:
    """The choices of one test: the same for the same seed, whatever ran before."""
    return random.Random(f"{SEED} {name}")


@dataclass
class Row:
    """One fault."""

    fault: str
    injected: int = 0
    jobs: int = 0
    """Jobs under way meanwhile."""
    lost: int = 0
    """Of these, the ones that did not end as they should."""
    doubled: int = 0
    """Jobs too many, or attempts of a job that ran at the same time."""
    stale: int | None = None
    """Writes that the database took from an attempt that no longer held its job; None: the test does not count them."""
    recovery_seconds: list[float] = field(default_factory=list)
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    """Of the whole test, with all processes that it started and that ended."""

    def facts(self) -> dict[str, object]:
        """The row as JSON."""
        times = self.recovery_seconds
        median, worst = (round(statistics.median(times), 2), round(max(times), 2)) if times else (None, None)
        counts = {"injected": self.injected, "jobs": self.jobs, "lost": self.lost, "doubled": self.doubled}
        recovery = {"recovery_median_seconds": median, "recovery_worst_seconds": worst}
        cost = {"wall_seconds": round(self.wall_seconds, 1), "cpu_seconds": round(self.cpu_seconds, 1)}
        return {"fault": self.fault, **counts, "stale_accepted": self.stale, **recovery, **cost}


ROWS: list[Row] = []


def row(fault: str) -> Row:
    """A new row of the table."""
    ROWS.append(Row(fault))
    return ROWS[-1]


_COLUMNS = {
    "injected": "injected",
    "jobs": "jobs",
    "lost": "lost",
    "doubled": "doubled",
    "stale": "stale_accepted",
    "median s": "recovery_median_seconds",
    "worst s": "recovery_worst_seconds",
    "wall s": "wall_seconds",
    "CPU s": "cpu_seconds",
}


def machine() -> dict[str, object]:
    """What the seconds depend on."""
    return {"cores": len(os.sched_getaffinity(0)), "python": platform.python_version()}


_BEGAN = time.monotonic()


def write() -> None:
    """Write the table as JSON, if anybody wants it: after every test, since a run may be ended early."""
    if place := os.environ.get("PPO_FAULT_TABLE"):
        wall = round(time.monotonic() - _BEGAN, 1)
        rows = [one.facts() for one in ROWS]
        run = {"seed": SEED, "full": FULL, "machine": machine(), "wall_seconds": wall, "rows": rows}
        Path(place).write_text(json.dumps(run, indent=1) + "\n")


def text() -> list[str]:
    """The table in lines."""
    facts = [one.facts() for one in ROWS]
    lines = [[str(one["fault"]), *("" if one[key] is None else str(one[key]) for key in _COLUMNS.values())]
             for one in facts]  # fmt: skip
    cells = [["fault", *_COLUMNS], *lines]
    wide = max(len(line[0]) for line in cells)
    table = [f"{name:{wide}}" + "".join(f" {value:>8}" for value in values) for name, *values in cells]
    return [f"seed {SEED} (PPO_FAULT_SEED replays it)", *table]
