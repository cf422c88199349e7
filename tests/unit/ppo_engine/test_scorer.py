"""The scorer sums what the components say, and believes only one finite number per response."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from ppo_engine.config import RewardComponent
from ppo_engine.errors import RewardFailed
from ppo_engine.rewards import Scorer, build_scorer

PROMPTS, RESPONSES = ["p"] * 3, ["a", "bb", "ccc"]


def returning(value: Any) -> Callable[[Sequence[str], Sequence[str]], Any]:
    return lambda prompts, responses: value


def failure(value: Any, *, weight: float = 1.0) -> str:
    with pytest.raises(RewardFailed) as caught:
        Scorer([("fine", 1.0, returning([0.0] * 3)), ("bad", weight, returning(value))]).score(PROMPTS, RESPONSES)
    return caught.value.message


def test_total_is_the_weighted_sum_and_components_are_raw() -> None:
    scorer = Scorer([("x", 2.0, returning([1.0, 2.0, 3.0])), ("y", -0.5, returning([4, 0, 2]))])
    scores = scorer.score(PROMPTS, RESPONSES)
    assert scores.total == [0.0, 4.0, 5.0]
    assert scores.components == {"x": [1.0, 2.0, 3.0], "y": [4.0, 0.0, 2.0]}
    assert scorer.names == ["x", "y"]


def test_components_see_prompts_and_responses() -> None:
    scores = Scorer([("n", 1.0, lambda prompts, responses: [len(r) for r in responses])]).score(PROMPTS, RESPONSES)
    assert scores.total == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("kind", [tuple, np.array, torch.tensor, lambda x: np.array(x, dtype=np.float32)])
def test_arrays_and_tensors_of_numbers_are_fine(kind: Callable[[list[float]], Any]) -> None:
    assert Scorer([("x", 1.0, returning(kind([1.0, 0.5, -2.0])))]).score(PROMPTS, RESPONSES).total == [1.0, 0.5, -2.0]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([1.0, 2.0], "`bad` returned 2 scores for 3 responses"),
        ([], "`bad` returned 0 scores for 3 responses"),
        (None, "`bad` returned NoneType instead of 3 scores"),
        (1.0, "`bad` returned float instead of 3 scores"),
        ([1.0, None, 2.0], "`bad` returned NoneType instead of a number at index 1"),
        ([1.0, 2.0, "3"], "`bad` returned str instead of a number at index 2"),
        ([1.0, [2.0], 3.0], "`bad` returned list instead of a number at index 1"),
        (torch.zeros(3, 1), "`bad` returned Tensor of shape [1] instead of a number at index 0"),
        (np.zeros((3, 2)), "`bad` returned ndarray of shape [2] instead of a number at index 0"),
        ([1.0, float("nan"), float("nan")], "`bad` is nan at index 1 of 3"),
        ([1.0, 2.0, float("-inf")], "`bad` is -inf at index 2 of 3"),
        (torch.tensor([1.0, torch.inf, 0.0]), "`bad` is inf at index 1 of 3"),
        ([1e39, 0.0, 0.0], "`bad` is 1e+39 at index 0 of 3"),
    ],
)
def test_anything_else_fails_with_component_and_place(value: Any, reason: str) -> None:
    assert reason in failure(value)


def test_a_weighted_sum_that_overflows_float32_fails() -> None:
    assert "weighted sum of the rewards is 1e+39 at index 1" in failure([0.0, 1e38, 0.0], weight=10.0)


def test_a_component_that_raises_is_named_with_what_it_raised() -> None:
    def broken(prompts: Sequence[str], responses: Sequence[str]) -> list[float]:
        raise ZeroDivisionError("division by zero")

    with pytest.raises(RewardFailed, match="reward `mine` raised ZeroDivisionError: division by zero"):
        Scorer([("mine", 1.0, broken)]).score(PROMPTS, RESPONSES)


def test_a_spec_becomes_a_scorer() -> None:
    spec = [
        {"name": "short", "weight": 0.5, "rule": {"name": "length", "params": {"target": 1}}},
        {"name": "has_b", "weight": 2.0, "rule": {"name": "regex", "params": {"pattern": "b"}}},
    ]
    components = [RewardComponent.model_validate(item) for item in spec]
    scores = build_scorer(components, roots=[], device=torch.device("cpu")).score(PROMPTS, RESPONSES)
    assert scores.total == [0.5, 2.5, 0.5]
