"""One component tried on some texts, outside of a run: what goes wrong is told, not raised."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import torch

from ppo_engine.errors import EngineError, OutOfMemory
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

    @classmethod
    def of(cls, build: Callable[[], Component], exchanges: Sequence[Exchange]) -> tuple[Component | None, Trial]:
        """Build a component and try it; no component where it cannot be built."""
        try:
            component = build()
        except OutOfMemory:
            raise
        except EngineError as error:
            return None, cls([None] * len(exchanges), error=error.message)
        return component, cls.again(component, exchanges)

    @classmethod
    def again(cls, component: Component, exchanges: Sequence[Exchange]) -> Trial:
        """Try a component; it may be a stranger's code, and raise anything."""
        start = perf_counter()
        try:
            session = component.open(len(exchanges))
            for index, exchange in enumerate(exchanges):
                session.add(index, exchange)
            lengths = [exchange.response_tokens for exchange in exchanges]
            answer = read_answer(f"reward `{component.name}`", session.close(), lengths, dense=component.dense)
        except (OutOfMemory, MemoryError, torch.OutOfMemoryError):
            raise
        except EngineError as error:
            return cls([None] * len(exchanges), error=error.message, seconds=perf_counter() - start)
        except Exception as error:
            log.warning("reward `%s` raised", component.name, exc_info=True)
            reason = f"it raised {type(error).__name__}: {error}"
            return cls([None] * len(exchanges), error=reason, seconds=perf_counter() - start)
        failures = {index: failure.reason for index, failure in answer.failures.items()}
        return cls(answer.values, failures, seconds=perf_counter() - start)

    def errors_at(self, index: int) -> str | None:
        """Why an exchange has no value."""
        return self.error or self.failures.get(index)
