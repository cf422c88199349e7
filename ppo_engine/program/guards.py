"""Conditions on metrics: when a guard trips, whether a run still improves, and which checkpoint is best. Torch-free."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ppo_engine.config import Direction, GuardAction, GuardRule
from ppo_engine.rundir import RunDir
from ppo_engine.stats import Better, scalar_metric


@dataclass(frozen=True, slots=True)
class Trip:
    """A rule whose condition held for its number of steps."""

    index: int
    rule: GuardRule
    value: float | None
    """The metric's value; None for a rule on non-finite numbers."""


@dataclass(slots=True)
class Guards:
    """The guard rules of a run, and for how many steps in a row each condition has held."""

    rules: Sequence[GuardRule]
    streaks: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    """How often each rule rolled the run back."""

    def __post_init__(self) -> None:
        self.streaks = self.streaks or [0] * len(self.rules)
        self.times = self.times or [0] * len(self.rules)

    @property
    def roll_back(self) -> bool:
        """Whether any rule may roll the run back."""
        return any(rule.action is GuardAction.ROLLBACK for rule in self.rules)

    @property
    def healthy(self) -> bool:
        """Whether a checkpoint taken now is one to roll back to: no such rule's condition holds."""
        pairs = zip(self.rules, self.streaks, strict=True)
        return not any(streak for rule, streak in pairs if rule.action is GuardAction.ROLLBACK)

    @property
    def learning_rate_factor(self) -> float:
        """What all rollbacks so far made of the learning rate."""
        factor = 1.0
        for rule, times in zip(self.rules, self.times, strict=True):
            factor *= rule.learning_rate_factor**times
        return factor

    @property
    def rollbacks(self) -> int:
        """Rollbacks so far."""
        return sum(self.times)

    def observe(self, scalars: Mapping[str, float]) -> list[Trip]:
        """Count one step; a rule trips in the step that completes its streak. An absent metric counts nothing."""
        trips = []
        for index, rule in enumerate(self.rules):
            if rule.metric is None or rule.metric not in scalars:
                continue
            value = scalars[rule.metric]
            self.streaks[index] = self.streaks[index] + 1 if _holds(rule, value) else 0
            if self.streaks[index] == rule.for_steps:
                trips.append(Trip(index, rule, value))
        return trips

    def non_finite(self) -> Trip | None:
        """The rule for numbers that are not finite, if there is one."""
        for index, rule in enumerate(self.rules):
            if rule.non_finite:
                return Trip(index, rule, None)
        return None

    def rolled_back(self, trip: Trip) -> None:
        """Count a rollback; all conditions begin anew."""
        self.times[trip.index] += 1
        self.streaks = [0] * len(self.rules)

    def recall(self, times: Sequence[int]) -> bool:
        """Count rollbacks that happened after the checkpoint was written; returns whether there were any."""
        if len(times) != len(self.rules) or not any(a > b for a, b in zip(times, self.times, strict=True)):
            return False
        self.times = [max(pair) for pair in zip(times, self.times, strict=True)]
        return True

    def exhausted(self, trip: Trip) -> bool:
        """Whether the rule rolled back as often as it may."""
        return self.times[trip.index] >= trip.rule.max_times

    def state_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {"streaks": list(self.streaks), "times": list(self.times)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back what `state_dict` gave."""
        self.streaks, self.times = list(state["streaks"]), list(state["times"])


def _holds(rule: GuardRule, value: float) -> bool:
    return (rule.above is not None and value > rule.above) or (rule.below is not None and value < rule.below)


def describe(rule: GuardRule) -> str:
    """The condition in words."""
    if rule.metric is None:
        return "a number that is not finite"
    bound = f"above {rule.above:g}" if rule.above is not None else f"below {rule.below:g}"
    steps = f" for {rule.for_steps} steps" if rule.for_steps > 1 else ""
    return f"{rule.metric} {bound}{steps}"


def write_rollbacks(run: RunDir, times: Sequence[int]) -> None:
    """Remember rollbacks where no checkpoint does: the one gone back to was written before them."""
    partial = run.rollbacks.with_suffix(".partial")
    partial.write_text(json.dumps(list(times)))
    partial.replace(run.rollbacks)


def read_rollbacks(run: RunDir) -> list[int]:
    """What `write_rollbacks` wrote; nothing if there was no rollback."""
    return list(json.loads(run.rollbacks.read_text())) if run.rollbacks.exists() else []


@dataclass(slots=True)
class Best:
    """The best value of a metric so far, and how many values ago that was."""

    metric: str
    direction: Direction | None = None
    min_delta: float = 0.0
    best: float | None = None
    since: int = 0

    def score(self, scalars: Mapping[str, float]) -> float | None:
        """The metric with the sign that makes larger better; None where it is not reported."""
        if self.metric not in scalars:
            return None
        return scalars[self.metric] if self._up else -scalars[self.metric]

    @property
    def _up(self) -> bool:
        if self.direction is not None:
            return self.direction is Direction.UP
        metric = scalar_metric(self.metric)
        return metric is None or metric.better is not Better.DOWN

    def improved(self, scalars: Mapping[str, float]) -> bool:
        """Count one step's value; whether it is better than all before by more than `min_delta`."""
        score = self.score(scalars)
        if score is None:
            return False
        better = self.best is None or score > self.best + self.min_delta
        self.best, self.since = (score, 0) if better else (self.best, self.since + 1)
        return better

    def state_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {"best": self.best, "since": self.since}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back what `state_dict` gave."""
        self.best, self.since = state["best"], int(state["since"])
