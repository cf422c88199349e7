"""Guards count steps in a row; early stopping counts values without improvement."""

from __future__ import annotations

import pytest

from ppo_engine.config import Direction, GuardRule
from ppo_engine.program.guards import Best, Guards, describe
from tests.support.specs import make_spec


def guards(**rule: object) -> Guards:
    return Guards([GuardRule.model_validate({"metric": "objective/kl", "above": 25.0, **rule})])


def tripped(found: Guards, values: list[float | None]) -> list[bool]:
    return [bool(found.observe({} if v is None else {"objective/kl": v})) for v in values]


def test_a_guard_trips_once_in_the_step_that_completes_its_streak() -> None:
    assert tripped(guards(for_steps=2), [26, 26, 26, 26, 24, 26, 26]) == [False, True, False, False, False, False, True]


def test_the_bound_itself_is_allowed() -> None:
    assert tripped(guards(), [25.0, 25.1]) == [False, True]
    assert tripped(guards(above=None, below=1.0), [1.0, 0.9]) == [False, True]


def test_an_absent_metric_neither_counts_nor_forgives() -> None:
    assert tripped(guards(for_steps=2), [26, None, 26]) == [False, False, True]


def test_health_is_the_absence_of_a_condition_that_can_roll_back() -> None:
    found = guards(for_steps=3, action="rollback")
    found.observe({"objective/kl": 26.0})
    assert not found.healthy
    found.observe({"objective/kl": 1.0})
    assert found.healthy
    warning = guards(for_steps=3)
    warning.observe({"objective/kl": 26.0})
    assert warning.healthy


def test_rollbacks_are_counted_and_multiply_the_learning_rate() -> None:
    found = guards(action="rollback", learning_rate_factor=0.5, max_times=2)
    (trip,) = found.observe({"objective/kl": 30.0})
    assert not found.exhausted(trip)
    found.rolled_back(trip)
    found.rolled_back(trip)
    assert found.exhausted(trip)
    assert found.learning_rate_factor == 0.25
    assert found.healthy
    again = guards(action="rollback", learning_rate_factor=0.5, max_times=2)
    again.load_state_dict(found.state_dict())
    assert (again.times, again.streaks) == (found.times, found.streaks)


def test_a_rule_says_what_it_is() -> None:
    assert describe(guards(for_steps=3).rules[0]) == "objective/kl above 25 for 3 steps"
    assert describe(GuardRule(non_finite=True, action="pause")) == "a number that is not finite"


@pytest.mark.parametrize("rule", [{"metric": "objective/kl"}, {"above": 1.0}, {"non_finite": True, "metric": "x"}, {}])
def test_a_rule_has_one_condition(rule: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="give a `metric`"):
        GuardRule.model_validate(rule)


def test_patience_counts_values_without_an_improvement_by_more_than_delta() -> None:
    best = Best("eval/reward_mean", min_delta=0.1)
    since = []
    for value in [0.0, 0.05, 0.2, 0.2, None, 0.25]:
        best.improved({} if value is None else {"eval/reward_mean": value})
        since.append(best.since)
    assert since == [0, 1, 0, 1, 1, 2]


def test_the_metric_says_which_direction_is_better_unless_the_spec_does() -> None:
    assert Best("eval/kl").score({"eval/kl": 3.0}) == -3.0
    assert Best("eval/reward_mean").score({"eval/reward_mean": 3.0}) == 3.0
    assert Best("eval/kl", Direction.UP).score({"eval/kl": 3.0}) == 3.0
    assert Best("eval/kl").score({}) is None


def test_memory_survives_a_resume() -> None:
    from ppo_engine.program.oversight import Oversight

    config = make_spec(
        evaluation={"prompts": {"inline": ["a"]}},
        early_stop={"patience": 2},
        checkpoint={"keep_best": 1},
        guards=[{"metric": "objective/kl", "above": 1.0, "for_steps": 2, "action": "stop"}],
    )
    first, second = Oversight(config), Oversight(config)
    before = {"eval/reward_mean": 1.0, "objective/kl": 2.0}
    first.observe(before)
    second.load_state_dict(first.state_dict())
    now = {"eval/reward_mean": 0.5, "objective/kl": 2.0}
    assert first.observe(now) == second.observe(now)
    assert second.observe(now).exhausted
