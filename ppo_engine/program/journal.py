"""Where the results of a run are written beside its events: TensorBoard, samples.jsonl and, if asked, wandb."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ppo_engine.config import TrainConfig
from ppo_engine.events import Sample
from ppo_engine.experience.samples import append_samples, forget_samples_after
from ppo_engine.program.tensorboard import TensorBoardWriter
from ppo_engine.program.wandb_writer import make_wandb
from ppo_engine.rundir import RunDir
from ppo_engine.stats import StepStats


class Writer(Protocol):
    """Takes one step after the other."""

    def write(self, stats: StepStats, samples: Sequence[Sample]) -> None:
        """Write one step."""
        ...

    def close(self) -> None:
        """Finish; nothing can be written afterwards."""
        ...


class _NoJournal:
    """Of the processes that leave the writing to the main one."""

    def write(self, stats: StepStats, samples: Sequence[Sample]) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


NO_JOURNAL: Writer = _NoJournal()


class Journal:
    """All writers of a run. Opened after `step`: what an earlier attempt wrote beyond it is dropped.

    Raises:
        WandbUnavailable: wandb is asked for and cannot be used.
    """

    def __init__(
        self, run: RunDir, config: TrainConfig, step: int, *, resumed: bool, identity: Mapping[str, Any]
    ) -> None:
        self._run = run
        forget_samples_after(run.samples, step if resumed else -1)
        self._writers: list[Writer] = []
        if config.logging.wandb is not None:
            self._writers.append(make_wandb(config, run, identity))
        if config.logging.tensorboard:
            self._writers.append(TensorBoardWriter(run.tensorboard, step + 1 if resumed else None))

    def write(self, stats: StepStats, samples: Sequence[Sample]) -> None:
        """Write one step everywhere; on disk when this returns."""
        for writer in self._writers:
            writer.write(stats, samples)
        append_samples(self._run.samples, stats.step, samples)

    def close(self) -> None:
        """Finish all writers."""
        for writer in self._writers:
            writer.close()
