"""The components of a spec tried on some texts, outside of a run: what goes wrong is told, not raised."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import torch

from ppo_engine.config import OnError, RewardComponent
from ppo_engine.egress import Egress
from ppo_engine.errors import EngineError, OutOfMemory
from ppo_engine.rewards import build_component
from ppo_engine.rewards.answer import read_answer
from ppo_engine.rewards.exchange import Exchange
from ppo_engine.rewards.scorer import Component

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Trial:
    """What a component made of B exchanges."""

    values: list[float | None]
    """[B]; None where it failed."""
    failures: dict[int, str] = field(default_factory=dict)
    """Reason by exchange."""
    error: str | None = None
    """Why it scored none at all."""
    seconds: float = 0.0

    def reason(self, index: int) -> str | None:
        """Why an exchange has no value."""
        return self.error or self.failures.get(index)


class Panel:
    """The components of a spec, built as for a run; those that cannot be say why at every trial."""

    def __init__(
        self, items: Sequence[RewardComponent], *, roots: Sequence[Path], device: torch.device, egress: Egress
    ) -> None:
        self.items = items
        self._built: list[Component | str] = []
        """A component, or why there is none."""
        for item in items:
            try:
                self._built.append(build_component(item, roots=roots, device=device, egress=egress))
            except OutOfMemory:
                raise
            except EngineError as error:
                self._built.append(error.message)

    def score(self, exchanges: Sequence[Exchange]) -> list[Trial]:
        """Try every component."""
        return [
            Trial([None] * len(exchanges), error=built) if isinstance(built, str) else try_component(built, exchanges)
            for built in self._built
        ]

    def sums(self, trials: Sequence[Trial]) -> list[float | None]:
        """The reward of each exchange as a run would add it up; None where it would fail, or leave it out."""
        found: list[float | None] = []
        for values in zip(*(trial.values for trial in trials), strict=True):
            trained = [(item, value) for item, value in zip(self.items, values, strict=True) if not item.shadow]
            lost = any(value is None and item.on_error is not OnError.ZERO for item, value in trained)
            found.append(None if lost else sum(item.weight * (value or 0.0) for item, value in trained))
        return found

    def values_at(self, trials: Sequence[Trial], index: int) -> dict[str, float]:
        """Values of one exchange, by component; without those that failed."""
        pairs = zip(self.items, trials, strict=True)
        return {item.name: value for item, trial in pairs if (value := trial.values[index]) is not None}

    def errors_at(self, trials: Sequence[Trial], index: int) -> dict[str, str]:
        """Why components failed at one exchange."""
        pairs = zip(self.items, trials, strict=True)
        return {item.name: reason for item, trial in pairs if (reason := trial.reason(index)) is not None}


def try_component(component: Component, exchanges: Sequence[Exchange]) -> Trial:
    """Try one component; it may be a stranger's code, and raise anything."""
    start = perf_counter()
    try:
        session = component.open(len(exchanges))
        for index, exchange in enumerate(exchanges):
            session.add(index, exchange)
        lengths = [exchange.response_tokens for exchange in exchanges]
        answer = read_answer(f"reward `{component.name}`", session.close(), lengths, dense=component.dense)
    except (OutOfMemory, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        log.warning("reward `%s` failed", component.name, exc_info=True)
        raised = f"it raised {type(error).__name__}: {error}"
        reason = error.message if isinstance(error, EngineError) else raised
        return Trial([None] * len(exchanges), error=reason, seconds=perf_counter() - start)
    failures = {index: failure.reason for index, failure in answer.failures.items()}
    return Trial(answer.values, failures, seconds=perf_counter() - start)
