"""How often each fault was injected and what came of it: printed, and written as JSON where PPO_FAULT_TABLE says."""

from __future__ import annotations

import json
import os
import random
import statistics
from dataclasses import dataclass, field
from pathlib import Path

FULL = os.environ.get("PPO_FAULT_COUNTS") == "full"
SEED = int(os.environ.get("PPO_FAULT_SEED") or random.randrange(10**6))
"""Replays a run's choices."""


def count(few: int, full: int) -> int:
    """How often to inject a fault: few times in `make test`, the full count in `make robustness`."""
    return full if FULL else few


@dataclass
class Row:
    """One fault."""

    fault: str
    injected: int = 0
    lost: int = 0
    doubled: int = 0
    recovery_seconds: list[float] = field(default_factory=list)

    def facts(self) -> dict[str, object]:
        """The row as JSON."""
        times = self.recovery_seconds
        median, worst = (round(statistics.median(times), 2), round(max(times), 2)) if times else (None, None)
        counts = {"injected": self.injected, "lost": self.lost, "doubled": self.doubled}
        return {"fault": self.fault, **counts, "recovery_median_seconds": median, "recovery_worst_seconds": worst}


ROWS: list[Row] = []


def row(fault: str) -> Row:
    """A new row of the table."""
    ROWS.append(Row(fault))
    return ROWS[-1]


def text() -> list[str]:
    """The table in lines; writes it as JSON too."""
    facts = [one.facts() for one in ROWS]
    if place := os.environ.get("PPO_FAULT_TABLE"):
        Path(place).write_text(json.dumps({"seed": SEED, "full": FULL, "rows": facts}, indent=1) + "\n")
    head = f"{'fault':44} {'injected':>8} {'lost':>5} {'doubled':>8} {'median s':>9} {'worst s':>8}"
    lines = [f"{f['fault']!s:44} {f['injected']:>8} {f['lost']:>5} {f['doubled']:>8} "
             f"{f['recovery_median_seconds']!s:>9} {f['recovery_worst_seconds']!s:>8}" for f in facts]  # fmt: skip
    return [f"seed {SEED} (PPO_FAULT_SEED replays it)", head, *lines]
