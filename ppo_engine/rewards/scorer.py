"""The reward of a response: a weighted sum of named components, each checked before it is believed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ppo_engine.errors import EngineError, RewardFailed

FLOAT32_MAX = 3.4028234663852886e38
"""Scores become float32 tensors; what is beyond this would be infinite there."""


class RewardFn(Protocol):
    """Scores a batch: one finite number per response, in order."""

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> Sequence[float]: ...


@dataclass(frozen=True, slots=True)
class Scores:
    """Raw scores of a batch: the weighted sum, and every component before its weight."""

    total: list[float]
    components: dict[str, list[float]]


class Scorer:
    """The reward of a run: (name, weight, function) of each component."""

    def __init__(self, components: Sequence[tuple[str, float, RewardFn]]) -> None:
        self._components = tuple(components)

    @property
    def names(self) -> list[str]:
        """Names of the components, in the order of the spec."""
        return [name for name, _, _ in self._components]

    def score(self, prompts: Sequence[str], responses: Sequence[str]) -> Scores:
        """Score responses, each against the prompt at the same place.

        Raises:
            RewardFailed: a component raised, or returned anything but one finite number per response.
        """
        if len(prompts) != len(responses):
            raise ValueError(f"{len(prompts)} prompts, {len(responses)} responses")
        components = {name: _call(name, fn, prompts, responses) for name, _, fn in self._components}
        total = [0.0] * len(responses)
        for name, weight, _ in self._components:
            total = [sum_ + weight * value for sum_, value in zip(total, components[name], strict=True)]
        _check_finite("the weighted sum of the rewards", total)
        return Scores(total=total, components=components)


def _call(name: str, fn: RewardFn, prompts: Sequence[str], responses: Sequence[str]) -> list[float]:
    label = f"reward `{name}`"
    try:
        returned: Any = fn(prompts, responses)
    except RewardFailed as error:
        raise RewardFailed(f"{label}: {error.message}") from error
    except EngineError:
        raise
    except Exception as error:
        raise RewardFailed(f"{label} raised {type(error).__name__}: {error}") from error
    values = _numbers(label, returned, len(responses))
    _check_finite(label, values)
    return values


def _numbers(label: str, returned: Any, count: int) -> list[float]:
    try:
        found = len(returned)
    except TypeError:
        raise RewardFailed(f"{label} returned {_describe(returned)} instead of {count} scores") from None
    if found != count:
        raise RewardFailed(f"{label} returned {found} scores for {count} responses")
    for index, value in enumerate(returned):
        if not _is_number(value):
            raise RewardFailed(f"{label} returned {_describe(value)} instead of a number at index {index}")
    return [float(value) for value in returned]


def _is_number(value: Any) -> bool:
    """Python and NumPy numbers, and tensors of no dimension; a tensor of shape [1] is a wrong shape."""
    return hasattr(value, "__float__") and getattr(value, "ndim", 0) == 0


def _describe(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return type(value).__name__ if shape is None else f"{type(value).__name__} of shape {list(shape)}"


def _check_finite(label: str, values: Sequence[float]) -> None:
    for index, value in enumerate(values):
        if not abs(value) <= FLOAT32_MAX:  # false for NaN too
            raise RewardFailed(f"{label} is {value} at index {index} of {len(values)}; scores must be finite")
