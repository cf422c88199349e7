"""Reward plugins, each installed for the test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ppo_engine.config import RewardComponent
from ppo_engine.errors import InvalidConfig, RewardFailed
from ppo_engine.rewards import Scores, build_scorer
from tests.support.exchanges import exchange
from tests.support.plugins import install

SOURCE = """
def count(letter):
    return lambda exchanges: [exchange.response.count(letter) for exchange in exchanges]

def by_token(value=1.0):
    return lambda exchanges: [[value] * exchange.response_tokens for exchange in exchanges]

def short():
    return lambda exchanges: [1.0]

def broken():
    raise RuntimeError("no licence")

number = lambda: 5
"""
POINTS = """
[ppo_engine.rewards]
count = acme_rewards:count
by-token = acme_rewards:by_token
short = acme_rewards:short
broken = acme_rewards:broken
number = acme_rewards:number
missing = acme_rewards:missing
absent = acme_absent:reward

[console_scripts]
acme = acme_rewards:count
"""
BATCH = [exchange("abba", tokens=3), exchange("banana", tokens=2)]


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, module="acme_rewards", source=SOURCE, entry_points=POINTS)


def score(name: str, **params: Any) -> Scores:
    component = RewardComponent.model_validate({"name": "mine", "plugin": {"name": name, "params": params}})
    return build_scorer([component], roots=[], device=torch.device("cpu")).score(BATCH)


def test_a_plugin_is_made_with_its_parameters_and_scores() -> None:
    assert score("count", letter="a").total == [2.0, 3.0]


def test_a_plugin_may_score_every_token() -> None:
    scores = score("by-token", value=0.5)
    assert scores.token_rewards == [[0.5] * 3, [0.5] * 2]
    assert (scores.total, scores.tail) == ([1.5, 1.0], [0.0, 0.0])


def test_an_unknown_plugin_lists_those_installed() -> None:
    there = "absent, broken, by-token, count, missing, number, short"
    with pytest.raises(InvalidConfig, match=f"no reward plugin `acme` is installed; there are: {there}$"):
        score("acme")


@pytest.mark.parametrize(
    ("name", "params", "reason"),
    [
        ("count", {}, "`count`: TypeError: .*missing 1 required positional argument: 'letter'"),
        ("count", {"letter": "a", "x": 1}, "`count`: TypeError: .*unexpected keyword argument 'x'"),
        ("broken", {}, "`broken`: RuntimeError: no licence"),
        ("missing", {}, "`missing`: AttributeError"),
        ("absent", {}, "`absent`: ModuleNotFoundError: No module named 'acme_absent'"),
        ("number", {}, "`number` made a int instead of a function"),
    ],
)
def test_a_plugin_that_cannot_be_made_says_why(name: str, params: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidConfig, match=reason):
        score(name, **params)


def test_a_plugins_wrong_count_is_an_error_with_the_components_name() -> None:
    with pytest.raises(RewardFailed, match="reward `mine` returned 1 scores for 2 responses"):
        score("short")
