"""What a reward component returned for a batch, checked: B exchanges, one value or one row of numbers for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ppo_engine.errors import RewardFailed, RewardUnavailable
from ppo_engine.rewards.exchange import Unscored

FLOAT32_MAX = 3.4028234663852886e38
"""Scores become float32 tensors; what is beyond this would be infinite there."""


@dataclass(slots=True)
class Answer:
    """Scores of one component. `values[i]` is None exactly where `failures` has a reason for `i`."""

    values: list[float | None]
    """[B]"""
    failures: dict[int, Unscored] = field(default_factory=dict)
    tokens: list[list[float] | None] | None = None
    """[B][T] of a dense component, whose values are the sums over T."""

    def row(self, index: int) -> list[Any]:
        """What it says of one response, as JSON: value, reason, whether that is transient, numbers per token."""
        failure = self.failures.get(index)
        reason, transient = (None, False) if failure is None else (failure.reason, failure.transient)
        return [self.values[index], reason, transient, None if self.tokens is None else self.tokens[index]]

    @classmethod
    def of_rows(cls, rows: Sequence[list[Any]]) -> Answer:
        """The inverse of `row`, for all responses."""
        failures = {index: Unscored(row[1], row[2]) for index, row in enumerate(rows) if row[1] is not None}
        tokens = [row[3] for row in rows]
        dense = any(row is not None for row in tokens)
        return cls([row[0] for row in rows], failures, tokens if dense else None)


def read_answer(label: str, returned: Any, lengths: Sequence[int], *, dense: bool) -> Answer:
    """Check what the component `label` returned for responses of `lengths` tokens.

    Args:
        dense: whether it may give a row of one number per token instead of one number.

    Raises:
        RewardFailed: another count than that of the responses, or something that is neither a number nor a row of
            the right length.
    """
    items = _items(label, returned, len(lengths))
    if dense and any(_is_row(item) for item in items):
        return _dense_answer(label, items, lengths)
    answer = Answer([None] * len(items))
    for index, item in enumerate(items):
        _put(answer, index, item if isinstance(item, Unscored) else _number(label, item, f"at index {index}"))
    return answer


def _items(label: str, returned: Any, count: int) -> list[Any]:
    if isinstance(returned, str | bytes | dict | set):
        raise RewardFailed(f"{label} returned {_describe(returned)} instead of {count} scores")
    try:
        items = list(returned)
    except TypeError:
        raise RewardFailed(f"{label} returned {_describe(returned)} instead of {count} scores") from None
    if len(items) != count:
        raise RewardFailed(f"{label} returned {len(items)} scores for {count} responses")
    return items


def _dense_answer(label: str, items: Sequence[Any], lengths: Sequence[int]) -> Answer:
    answer = Answer([None] * len(items), tokens=[None] * len(items))
    for index, (item, length) in enumerate(zip(items, lengths, strict=True)):
        if item is None or isinstance(item, Unscored):
            _put(answer, index, item)
        elif not _is_row(item):
            raise RewardFailed(f"{label} returned {_describe(item)} at index {index}, and rows elsewhere")
        elif len(item) != length:
            raise RewardFailed(f"{label} returned {len(item)} numbers at index {index} for {length} response tokens")
        else:
            row = [_number(label, value, f"at index {index}, token {token}") for token, value in enumerate(item)]
            _put_row(answer, index, row)
    return answer


def _put_row(answer: Answer, index: int, row: Sequence[float | None]) -> None:
    numbers = [value for value in row if value is not None and abs(value) <= FLOAT32_MAX]
    if len(numbers) < len(row):
        answer.failures[index] = Unscored("one of its token rewards is not a finite number")
        return
    _put(answer, index, sum(numbers))
    if index not in answer.failures and answer.tokens is not None:
        answer.tokens[index] = numbers


def _put(answer: Answer, index: int, value: float | Unscored | None) -> None:
    if isinstance(value, Unscored):
        answer.failures[index] = value
    elif value is None:
        answer.failures[index] = Unscored("it gave no score")
    elif abs(value) <= FLOAT32_MAX:  # false for NaN too
        answer.values[index] = value
    else:
        answer.failures[index] = Unscored(f"{value} is not a finite number")


def _number(label: str, value: Any, place: str) -> float | None:
    """Python and NumPy numbers, and tensors of no dimension; a tensor of shape [1] is a wrong shape."""
    if value is None:
        return None
    if not hasattr(value, "__float__") or getattr(value, "ndim", 0) != 0:
        raise RewardFailed(f"{label} returned {_describe(value)} instead of a number {place}")
    return float(value)


def _is_row(value: Any) -> bool:
    """A list, or an array of one dimension."""
    return isinstance(value, list | tuple) or getattr(value, "ndim", 0) == 1


def _describe(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return type(value).__name__ if shape is None else f"{type(value).__name__} of shape {list(shape)}"


def failure(message: str, reason: Unscored) -> RewardFailed:
    """The error of a component that could not score a response."""
    return (RewardUnavailable if reason.transient else RewardFailed)(message)
