"""What watches over a run between its steps: guards, early stopping, and the rank of checkpoints. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ppo_engine.config import TrainConfig
from ppo_engine.program.guards import Best, Guards, Trip


@dataclass(frozen=True, slots=True)
class Finding:
    """What one step's statistics mean for the run."""

    trips: list[Trip]
    exhausted: bool
    """The early-stopping metric has not improved for its patience."""
    improved: bool
    """An evaluation improved the metric that ranks checkpoints: worth a checkpoint."""
    score: float | None
    """Rank of a checkpoint of this step; None: not ranked."""


class Oversight:
    """The conditions of a run on its own statistics, and their memory."""

    def __init__(self, config: TrainConfig) -> None:
        self.guards = Guards(config.guards)
        stop, checkpoint = config.early_stop, config.checkpoint
        self._early = None if stop is None else Best(stop.metric, stop.direction, stop.min_delta)
        self._patience = 0 if stop is None else stop.patience
        self._best = Best(config.best_metric, checkpoint.best_direction) if checkpoint.keep_best > 0 else None

    def observe(self, scalars: Mapping[str, float]) -> Finding:
        """Look at the statistics of one step."""
        if self._early is not None:
            self._early.improved(scalars)
        improved = self._best is not None and self._best.improved(scalars)
        return Finding(
            trips=self.guards.observe(scalars),
            exhausted=self._early is not None and self._early.since >= self._patience,
            improved=improved and self._best is not None and self._best.metric.startswith("eval/"),
            score=None if self._best is None else self._best.score(scalars),
        )

    def state_dict(self) -> dict[str, Any]:
        """JSON values, for the checkpoint."""
        return {
            "guards": self.guards.state_dict(),
            "early_stop": None if self._early is None else self._early.state_dict(),
            "best": None if self._best is None else self._best.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back what `state_dict` gave; conditions that the spec did not have then begin anew."""
        if len(state["guards"]["streaks"]) == len(self.guards.rules):
            self.guards.load_state_dict(state["guards"])
        for best, kept in ((self._early, state["early_stop"]), (self._best, state["best"])):
            if best is not None and kept is not None:
                best.load_state_dict(kept)
