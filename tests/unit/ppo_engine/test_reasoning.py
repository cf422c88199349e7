"""The adapter of reasoning-gym, against a package of the same interface (the real one is an optional extra)."""

from __future__ import annotations

from typing import Any

import pytest

from ppo_engine.config import RuleReward
from ppo_engine.errors import InvalidConfig
from ppo_engine.rewards import RewardFn
from ppo_engine.rewards.exchange import Unscored
from ppo_engine.rewards.rules import build_rule
from tests.support.exchanges import exchange


def rule(task: str) -> RewardFn:
    return build_rule(RuleReward(name="reasoning_gym", params={"task": task}))


@pytest.mark.usefixtures("reasoning_gym")
@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("12", 1.0),
        (" 12\n", 1.0),
        ("I think <answer>3</answer>, no, <answer>\n12 </answer>.", 1.0),
        ("<answer>3</answer> but 12", 0.0),
        ("it is 12", 0.25),
        ("", 0.0),
    ],
)
def test_the_tasks_own_scorer_sees_the_answer(response: str, expected: float) -> None:
    entry = {"question": "6 + 6?", "answer": "12", "metadata": {}}
    assert rule("echo")([exchange(response, entry=entry)]) == [expected]


@pytest.mark.usefixtures("reasoning_gym")
@pytest.mark.parametrize("record", [{}, {"entry": "12"}, {"entry": {"question": "?"}}])
def test_a_line_without_an_entry_cannot_be_scored(record: dict[str, Any]) -> None:
    (value,) = rule("echo")([exchange("12", **record)])
    assert isinstance(value, Unscored)


@pytest.mark.usefixtures("reasoning_gym")
@pytest.mark.parametrize("task", ["evil", "algebra"])
def test_a_scorer_that_runs_text_as_code_is_refused(task: str) -> None:
    with pytest.raises(InvalidConfig, match=f"task `{task}` is not possible"):
        rule(task)


@pytest.mark.usefixtures("reasoning_gym")
def test_an_unknown_task_lists_those_there_are() -> None:
    with pytest.raises(InvalidConfig, match="no task `ekko`; there are algebra, echo, evil"):
        rule("ekko")


def test_without_the_extra_the_rule_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "reasoning_gym", None)
    with pytest.raises(InvalidConfig, match=r"ppo-service\[reasoning\]"):
        rule("echo")
