"""`python -m tests.support.crashing_saves FOLDER [careless]`: processes that are killed while they save a checkpoint.

One run directory for each flush to the disk that a save does: there the process kills itself. Each has a whole
checkpoint of step 10 and may have one of step 20. `careless` gives a checkpoint its name before it is complete.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from ppo_engine import checkpoint
from ppo_engine.rundir import RunDir

_MOST_POINTS = 40


def save(run: RunDir, step: int) -> None:
    """A small checkpoint with everything a real one has."""
    checkpoint.save(
        run,
        step=step,
        attempt=1,
        identity={"spec": "s"},
        values={"step": step},
        tensors={"value": {"weight": torch.ones(4)}, "rng": {"torch": torch.zeros(4)}},
        folders={"model": _write_model},
    )


def _write_model(folder: Path) -> None:
    folder.mkdir()
    (folder / "config.json").write_text("{}")


def die_at(point: int) -> None:
    """Have this process killed where it would flush to the disk for the `point`-th time."""
    real, left = checkpoint.sync, point

    def sync(path: Path) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        real(path)

    checkpoint.sync = sync


def publish_early() -> None:
    """Give checkpoints their final name first."""
    real = checkpoint._publish

    def publish(partial: Path, final: Path, **facts: Any) -> checkpoint.Saved:
        partial.rename(final)
        return real(final, final.with_name("never"), **facts)

    checkpoint._publish = publish


def crash(folder: Path, point: int, *, careless: bool) -> bool:
    """Save in a process of its own that dies at `point`; False if the save was done before that."""
    child = os.fork()
    if child == 0:
        save(RunDir(folder), 10)
        if careless:
            publish_early()
        die_at(point)
        save(RunDir(folder), 20)
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def main() -> None:
    """Crash at every point there is; prints how many."""
    folder, careless = Path(sys.argv[1]), sys.argv[2:] == ["careless"]
    point = 1
    while point < _MOST_POINTS and crash(folder / str(point), point, careless=careless):
        point += 1
    print(point - 1)


if __name__ == "__main__":
    main()
