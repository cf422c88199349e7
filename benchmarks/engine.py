"""PPO steps of this engine against TRL 0.11.4: alternating, medians, as ratios. `make bench` runs it.

    python -m benchmarks.engine [--rounds 5] [--only WORKLOAD ...] [--out FILE.json]

Both sides are started once per row and wait for a line between steps, so that only one of them works at a time. The
first step of each is a warm-up. In fp32, TRL's first step is replayed by this engine, and the statistics must agree,
or the row is void.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.setting_up import REPOSITORY, make_models, make_trl_environment

TOLERANCE = 1e-3
"""Largest difference of a statistic, relative to 1 or its value, at which two sides still do the same work."""


@dataclass(frozen=True)
class Row:
    """One comparison: a workload, our precision and TRL's, and the ratios to reach."""

    title: str
    workload: str
    ours: str
    theirs: str
    speed: float
    memory: float | None = None


ROWS = (
    Row("GPT-2 124M, same precision", "gpt2", "fp32", "fp32", 1.5),
    Row("GPT-2 124M, defaults", "gpt2", "auto", "fp32", 4.0, 0.7),
    Row("SmolLM2 chat, same precision", "smollm2", "fp32", "fp32", 2.0),
    Row("SmolLM2 chat, defaults", "smollm2", "auto", "fp32", 4.0, 0.7),
    Row("SmolLM2 one epoch of 32", "one-epoch", "auto", "fp32", 3.0),
    Row("SmolLM2 LoRA rank 16", "lora", "auto", "fp32", 3.0, 0.5),
    Row("SmolLM2 top 10 of 30 layers", "layers", "auto", "fp32", 4.0, 0.5),
)


class Side:
    """A process that does one step for every line."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
        )
        self.loaded_bytes = int(self._answer()["loaded_bytes"])

    def step(self) -> dict[str, float]:
        """Seconds of one step."""
        return self._ask("step")

    def end(self) -> int:
        """Peak memory, bytes."""
        peak = int(self._ask("quit")["peak_bytes"])
        self._process.wait()
        return peak

    def _ask(self, line: str) -> dict[str, Any]:
        if self._process.stdin is not None:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        """The next line that is JSON; libraries print what they like."""
        for line in self._process.stdout or ():
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        raise RuntimeError(f"{self._process.args} ended with exit code {self._process.wait()}")


def environment() -> dict[str, str]:
    """One thread per core, set explicitly, and an idle side that does not spin."""
    threads = str(len(os.sched_getaffinity(0)))
    return {**os.environ, "BENCH_THREADS": threads, "OMP_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "false"}


def main() -> None:
    """Run the rows, print the table, write JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", help="workloads to run")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "var" / "bench" / "engine.json")
    arguments = parser.parse_args()
    trl, models = make_trl_environment(), make_models()
    results = []
    for workload in dict.fromkeys(row.workload for row in ROWS):
        if not arguments.only or workload in arguments.only:
            rows = [row for row in ROWS if row.workload == workload]
            for found in compare(rows, trl, models, arguments.rounds):
                results.append(found)
                print(line_of(found), flush=True)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps({"machine": machine(), "rows": results}, indent=1) + "\n")


def compare(rows: Sequence[Row], trl: Path, models: Path, rounds: int) -> list[dict[str, Any]]:
    """All rows of one workload, TRL and every side of ours in turn, for `rounds` steps after a warm-up."""
    first = rows[0]
    with recording() as case:
        options = ["--precision", first.theirs, "--record", str(case)]
        theirs = Side([str(trl), "benchmarks/trl_side.py", first.workload, str(models), *options])
        ours = [Side(our_command(row, models)) for row in rows]
        for side in (theirs, *ours):
            side.step()
        steps = [[side.step() for side in (theirs, *ours)] for _ in range(rounds)]
        peaks = [side.end() for side in (theirs, *ours)]
        columns = list(zip(*steps, strict=True))
        return [
            result(row, columns[0], columns[i], (peaks[0], peaks[i]), replay(row, models, case))
            for i, row in enumerate(rows, start=1)
        ]


def result(
    row: Row,
    theirs: Sequence[dict[str, float]],
    ours: Sequence[dict[str, float]],
    peaks: tuple[int, int],
    agreement: dict[str, Any],
) -> dict[str, Any]:
    """Medians and their ratios."""
    columns = {"trl": theirs, "ours": ours}
    medians = {side: statistics.median(step["seconds"] for step in found) for side, found in columns.items()}
    per_token = {
        side: statistics.median(step["seconds"] / step["tokens"] for step in found) for side, found in columns.items()
    }
    return {
        **asdict(row),
        "seconds": medians,
        "spread": {side: [step["seconds"] for step in found] for side, found in columns.items()},
        "phases": {side: phases(found) for side, found in columns.items()},
        "speedup": medians["trl"] / medians["ours"],
        "speedup_per_token": per_token["trl"] / per_token["ours"],
        "peak_bytes": dict(zip(columns, peaks, strict=True)),
        "memory_ratio": peaks[1] / peaks[0],
        "agreement": agreement,
    }


def our_command(row: Row, models: Path) -> list[str]:
    """The command of our side."""
    return [sys.executable, "-m", "benchmarks.our_side", row.workload, str(models), "--precision", row.ours]


def phases(steps: Sequence[dict[str, float]]) -> dict[str, float]:
    """Median seconds of every phase."""
    names = ("generation_seconds", "forward_seconds", "optimise_seconds", "tokens")
    return {name: statistics.median(step[name] for step in steps) for name in names}


def replay(row: Row, models: Path, case: Path) -> dict[str, Any]:
    """How far our statistics are from TRL's recorded first step."""
    done = subprocess.run(
        [*our_command(row, models), "--replay", str(case)],
        cwd=REPOSITORY,
        env=environment(),
        check=True,
        capture_output=True,
        text=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if row.ours == row.theirs and found["difference"] > TOLERANCE:
        raise SystemExit(f"{row.title}: the sides do not do the same work: {found}")
    return found


@contextmanager
def recording() -> Iterator[Path]:
    """A place for TRL's first step."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "case.json"


def line_of(found: dict[str, Any]) -> str:
    """One row of the table."""
    seconds, spread = found["seconds"], found["spread"]
    ranges = {side: f"{min(spread[side]):.1f}-{max(spread[side]):.1f}" for side in spread}
    memory = "" if found["memory"] is None else f" (≤ {found['memory']})"
    return (
        f"| {found['title']} | {seconds['trl']:.1f} s [{ranges['trl']}] | {seconds['ours']:.1f} s [{ranges['ours']}] "
        f"| {found['speedup']:.2f}x (≥ {found['speed']}) | {found['speedup_per_token']:.2f}x "
        f"| {found['memory_ratio']:.2f}{memory} | {found['agreement']['difference']:.1e} |"
    )


def machine() -> dict[str, Any]:
    """What the numbers depend on."""
    return {
        "cpu": platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
    }


if __name__ == "__main__":
    main()
