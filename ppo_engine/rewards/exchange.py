"""What a reward sees, and what it may answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Exchange:
    """A prompt with one response to it, as rewards see them."""

    prompt: str
    """As the user wrote it, before any chat template."""
    response: str
    """Without special tokens and stop text."""
    record: Mapping[str, Any]
    """The prompt's JSON line, with `answer` and whatever else it has; empty for plain prompts."""
    response_tokens: int
    """Length of the response, tokens: a dense reward gives one number for each."""
    messages: tuple[Mapping[str, str], ...] = ()
    """The conversation that the response goes on from, where the prompt is one; `prompt` is its last message."""


@dataclass(frozen=True, slots=True)
class Unscored:
    """Stands in place of a score that could not be found."""

    reason: str
    transient: bool = False
    """Whether trying again later may help."""


ExchangeScore = Callable[[Exchange], float]
"""A rule: scores one exchange, or raises what says why it cannot."""


class CannotScore(Exception):
    """Raised by a rule that can give one exchange no score; the text says why."""


Score = float | Unscored | None
"""One number; or none, with or without a reason."""


class RewardFn(Protocol):
    """Scores exchanges: one value for each, in order.

    A value is a finite number, or None where there is none to give. A plugin may give dense rewards instead: for
    each exchange a sequence of `response_tokens` numbers, whose sum is the component's score.
    """

    def __call__(self, exchanges: Sequence[Exchange]) -> Sequence[Score] | Sequence[Sequence[float]]: ...


class Session(Protocol):
    """The scoring of one batch by one component, begun while responses are still being generated."""

    def add(self, index: int, exchange: Exchange) -> None:
        """Take one exchange, in any order."""

    def close(self) -> Any:
        """Scores of all exchanges in order of their index."""

    def abandon(self) -> None:
        """Stop: nobody will ask for the scores."""


class StreamingReward(Protocol):
    """A reward that works beside the generation."""

    def open(self, count: int) -> Session:
        """Begin a batch of `count` exchanges."""


class AtClose:
    """The session of a plain reward function: called once, with the whole batch."""

    def __init__(self, reward: RewardFn, count: int) -> None:
        self._reward = reward
        self._exchanges: dict[int, Exchange] = {}
        self._count = count

    def add(self, index: int, exchange: Exchange) -> None:
        """Keep an exchange for later."""
        self._exchanges[index] = exchange

    def close(self) -> Any:
        """Call the function."""
        return self._reward([self._exchanges[index] for index in range(self._count)])

    def abandon(self) -> None:
        """Nothing is under way."""
