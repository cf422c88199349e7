"""The scorer sums what the components say, and believes only finite numbers, one per response."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from ppo_engine.config import OnError, RewardComponent
from ppo_engine.errors import RewardFailed
from ppo_engine.ranks import ALONE
from ppo_engine.rewards import Component, Exchange, Scorer, Scores, build_scorer
from ppo_engine.summary import reward_scalars
from tests.support.exchanges import exchange

NAN = float("nan")
BATCH = [exchange("a", tokens=1), exchange("bb", tokens=2), exchange("ccc", tokens=3)]


def returning(value: Any) -> Callable[[Sequence[Exchange]], Any]:
    return lambda exchanges: value


def raising(error: Exception) -> Callable[[Sequence[Exchange]], Any]:
    def reward(exchanges: Sequence[Exchange]) -> Any:
        raise error

    return reward


def part(name: str, value: Any, weight: float = 1.0, **options: Any) -> Component:
    return Component(name=name, reward=returning(value), weight=weight, **options)


def score(*components: Component) -> Scores:
    return Scorer(components).score(BATCH)


def failure(*components: Component) -> str:
    with pytest.raises(RewardFailed) as caught:
        score(*components)
    return caught.value.message


def test_total_is_the_weighted_sum_and_components_are_raw() -> None:
    scores = score(part("x", [1.0, 2.0, 3.0], 2.0), part("y", [4, 0, 2], -0.5))
    assert scores.total == scores.tail == scores.kept == [0.0, 4.0, 5.0]
    assert scores.components == {"x": [1.0, 2.0, 3.0], "y": [4.0, 0.0, 2.0]}
    assert scores.token_rewards is None
    assert scores.dropped == [False] * 3
    assert scores.error_fraction == 0.0


def test_names_are_in_the_order_of_the_spec() -> None:
    assert Scorer([part("y", []), part("x", [])]).names == ["y", "x"]


def test_components_see_whole_exchanges() -> None:
    def reward(exchanges: Sequence[Exchange]) -> list[float]:
        return [len(e.prompt) + 10 * len(e.response) + 100 * e.response_tokens + e.record["add"] for e in exchanges]

    scorer = Scorer([Component(name="n", reward=reward)])
    assert scorer.score([exchange("ab", prompt="p", tokens=3, add=0.5)]).total == [321.5]


def test_responses_may_come_in_any_order() -> None:
    session = Scorer([Component(name="n", reward=lambda xs: [len(x.response) for x in xs])]).open(ALONE.share(3))
    for index in (2, 0, 1):
        session.add(index, BATCH[index])
    assert session.close().total == [1.0, 2.0, 3.0]


def test_a_session_wants_each_response_once() -> None:
    session = Scorer([part("x", [0.0])]).open(ALONE.share(2))
    session.add(1, BATCH[0])
    for index in (1, 2, -1):
        with pytest.raises(ValueError, match=f"response {index} of 2"):
            session.add(index, BATCH[0])
    with pytest.raises(ValueError, match="1 of 2 responses were added"):
        session.close()


@pytest.mark.parametrize("kind", [tuple, np.array, torch.tensor, lambda x: np.array(x, dtype=np.float32)])
def test_arrays_and_tensors_of_numbers_are_fine(kind: Callable[[list[float]], Any]) -> None:
    assert score(part("x", kind([1.0, 0.5, -2.0]))).total == [1.0, 0.5, -2.0]


MISSHAPEN = [
    ([1.0, 2.0], "`bad` returned 2 scores for 3 responses"),
    ([], "`bad` returned 0 scores for 3 responses"),
    (None, "`bad` returned NoneType instead of 3 scores"),
    (1.0, "`bad` returned float instead of 3 scores"),
    ("abc", "`bad` returned str instead of 3 scores"),
    ({0: 1.0, 1: 1.0, 2: 1.0}, "`bad` returned dict instead of 3 scores"),
    ([1.0, 2.0, "3"], "`bad` returned str instead of a number at index 2"),
    ([1.0, [2.0], 3.0], "`bad` returned list instead of a number at index 1"),
    (torch.zeros(3, 1), "`bad` returned Tensor of shape [1] instead of a number at index 0"),
    (np.zeros((3, 2)), "`bad` returned ndarray of shape [2] instead of a number at index 0"),
]
NOT_FINITE = [
    ([1.0, None, 2.0], "`bad` could not score response 1 of 3: it gave no score"),
    ([1.0, NAN, NAN], "`bad` could not score response 1 of 3: nan is not a finite number"),
    ([1.0, 2.0, float("-inf")], "`bad` could not score response 2 of 3: -inf is not"),
    (torch.tensor([1.0, torch.inf, 0.0]), "`bad` could not score response 1 of 3: inf is not"),
    ([1e39, 0.0, 0.0], "`bad` could not score response 0 of 3: 1e+39 is not"),
]


@pytest.mark.parametrize(("value", "reason"), MISSHAPEN + NOT_FINITE)
def test_anything_else_fails_with_component_and_place(value: Any, reason: str) -> None:
    assert reason in failure(part("fine", [0.0] * 3), part("bad", value))


@pytest.mark.parametrize(("value", "reason"), MISSHAPEN)
@pytest.mark.parametrize("options", [{"on_error": OnError.ZERO}, {"on_error": OnError.DROP}, {"shadow": True}])
def test_a_wrong_count_or_shape_is_an_error_under_every_policy(
    value: Any, reason: str, options: dict[str, Any]
) -> None:
    assert reason in failure(part("fine", [0.0] * 3), part("bad", value, max_error_rate=1.0, **options))


def test_a_weighted_sum_that_overflows_float32_fails() -> None:
    assert "weighted sum of the rewards is 1e+39 at index 1" in failure(part("big", [0.0, 1e38, 0.0], 10.0))


def test_a_component_that_raises_is_named_with_what_it_raised() -> None:
    broken = Component(name="mine", reward=raising(ZeroDivisionError("division by zero")))
    assert "reward `mine` could not score response 0 of 3: it raised ZeroDivisionError: division" in failure(broken)


@pytest.mark.parametrize("error", [MemoryError("full"), torch.OutOfMemoryError("CUDA out of memory")])
def test_exhausted_memory_is_not_the_components_failure(error: Exception) -> None:
    with pytest.raises(type(error)):
        score(Component(name="x", reward=raising(error), on_error=OnError.ZERO, max_error_rate=1.0))


def test_zero_counts_nothing_for_the_responses_that_failed() -> None:
    scores = score(
        part("x", [1.0, NAN, None], on_error=OnError.ZERO, max_error_rate=0.7), part("y", [1.0, 2.0, 3.0], 10.0)
    )
    assert scores.total == [11.0, 20.0, 30.0]
    assert scores.components["x"] == [1.0, None, None]
    assert scores.dropped == [False] * 3
    assert scores.error_fraction == pytest.approx(2 / 3)


def test_drop_marks_the_responses_that_failed() -> None:
    scores = score(
        part("x", [1.0, NAN, 3.0], on_error=OnError.DROP, max_error_rate=0.5),
        part("y", [None, NAN, 5.0], on_error=OnError.ZERO, max_error_rate=1.0),
    )
    assert scores.dropped == [False, True, False]
    assert scores.kept == [1.0, 8.0]
    assert scores.error_fraction == pytest.approx(2 / 3)


@pytest.mark.parametrize("policy", [OnError.DROP, OnError.ZERO])
def test_more_failures_than_the_error_rate_end_the_run(policy: OnError) -> None:
    allowed = part("x", [1.0, NAN, 1.0], on_error=policy, max_error_rate=1 / 3)
    assert score(allowed).components["x"] == [1.0, None, 1.0]
    message = failure(part("x", [1.0, NAN, None], on_error=policy, max_error_rate=0.5))
    assert message == (
        "reward `x` could not score 2 of 3 responses, more than max_error_rate 0.5; "
        "first response 1 of 3: nan is not a finite number"
    )


def test_a_batch_of_which_nothing_is_left_ends_the_run() -> None:
    lost = [part(name, value, on_error=OnError.DROP, max_error_rate=1.0) for name, value in LOST.items()]
    assert "every response of the batch was dropped" in failure(*lost)


LOST = {"x": [NAN, 1.0, NAN], "y": [1.0, NAN, 1.0]}


@pytest.mark.parametrize("policy", list(OnError))
def test_a_shadow_is_reported_and_changes_nothing(policy: OnError) -> None:
    shadow = part("s", [7.0, NAN, 9.0], 100.0, shadow=True, on_error=policy)
    scores = score(part("x", [1.0, 2.0, 3.0]), shadow)
    assert scores.total == scores.tail == [1.0, 2.0, 3.0]
    assert scores.components["s"] == [7.0, None, 9.0]
    assert scores.dropped == [False] * 3
    assert scores.error_fraction == pytest.approx(1 / 3)


def test_the_metrics_of_a_batch_leave_out_what_has_no_score() -> None:
    scores = score(
        part("x", [1.0, NAN, 4.0], on_error=OnError.DROP, max_error_rate=0.5),
        part("s", [None] * 3, shadow=True),
        part("y", [0.0, 3.0, 6.0], shadow=True),
    )
    assert reward_scalars(scores) == {
        "env/reward_mean": 2.5,
        "env/reward_std": pytest.approx(1.5 * 2**0.5),
        "env/reward_errors": 1.0,
        "env/reward/x_mean": 2.5,
        "env/reward/y_mean": 3.0,
    }


ROWS = [[1.0], [1.0, 2.0], [0.5, 0.0, -4.0]]


def test_dense_rewards_are_summed_by_token_and_apart_from_the_tail() -> None:
    scores = score(
        part("d", ROWS, 2.0, dense=True),
        part("e", [np.array([1.0]), np.ones(2), torch.ones(3)], -1.0, dense=True),
        part("x", [10.0, 20.0, 30.0]),
    )
    assert scores.token_rewards == [[1.0], [1.0, 3.0], [0.0, -1.0, -9.0]]
    assert scores.tail == [10.0, 20.0, 30.0]
    assert scores.total == [11.0, 24.0, 20.0]
    assert scores.components["d"] == [1.0, 3.0, -3.5]


def test_a_plugin_may_as_well_give_one_number_per_response() -> None:
    scores = score(part("d", [1.0, 2.0, 3.0], dense=True))
    assert scores.token_rewards is None
    assert scores.tail == [1.0, 2.0, 3.0]


def test_a_dense_reward_that_failed_on_a_response_has_no_row() -> None:
    rows = [[1.0], None, [0.5, NAN, -4.0]]
    scores = score(part("d", rows, dense=True, on_error=OnError.ZERO, max_error_rate=1.0), part("x", [1.0] * 3))
    assert scores.token_rewards == [[1.0], None, None]
    assert scores.components["d"] == [1.0, None, None]
    assert scores.total == [2.0, 1.0, 1.0]


def test_a_dense_shadow_gives_no_token_rewards() -> None:
    scores = score(part("d", ROWS, dense=True, shadow=True), part("x", [1.0] * 3))
    assert scores.token_rewards is None
    assert scores.components["d"] == [1.0, 3.0, -3.5]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([[1.0], [1.0], [1.0] * 3], "`d` returned 1 numbers at index 1 for 2 response tokens"),
        ([[1.0], 2.0, [1.0] * 3], "`d` returned float at index 1, and rows elsewhere"),
        ([[1.0], [1.0, "x"], [1.0] * 3], "`d` returned str instead of a number at index 1, token 1"),
        ([torch.zeros(1), torch.zeros(2, 1), torch.zeros(3)], "`d` returned Tensor of shape [2, 1] at index 1"),
    ],
)
def test_a_row_of_a_wrong_shape_fails_with_its_place(value: Any, reason: str) -> None:
    assert reason in failure(part("d", value, dense=True, on_error=OnError.ZERO, max_error_rate=1.0))


def test_a_spec_becomes_a_scorer() -> None:
    spec = [
        {"name": "short", "weight": 0.5, "rule": {"name": "length", "params": {"target": 1}}},
        {"name": "has_b", "weight": 2.0, "rule": {"name": "regex", "params": {"pattern": "b"}}},
        {"name": "has_c", "shadow": True, "rule": {"name": "regex", "params": {"pattern": "c"}}},
    ]
    components = [RewardComponent.model_validate(item) for item in spec]
    scores = build_scorer(components, roots=[], device=torch.device("cpu")).score(BATCH)
    assert scores.total == [0.5, 2.5, 0.5]
    assert scores.components["has_c"] == [0.0, 0.0, 1.0]
