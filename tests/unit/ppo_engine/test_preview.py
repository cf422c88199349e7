"""Rewards tried on texts: values as in a run, faults of a component told instead of raised."""

from __future__ import annotations

from typing import Any

import pytest

from ppo_engine.egress import NO_HOST_ALLOWED
from ppo_engine.errands import PreviewRequest, RewardPreview
from ppo_engine.program.preview import preview_reward
from ppo_engine.rewards import Component, Exchange, trial

WORDS = {"name": "words", "rule": {"name": "length", "params": {"target": 4}}}
MOOD = {"name": "mood", "weight": 0.5, "rule": {"name": "sentiment"}}


def previewed(rewards: list[dict[str, Any]], *pairs: tuple[str, str], **record: Any) -> RewardPreview:
    texts = [{"prompt": prompt, "response": response, "record": record} for prompt, response in pairs]
    asked = PreviewRequest.model_validate({"rewards": rewards, "texts": texts})
    return preview_reward(asked, roots=[], egress=NO_HOST_ALLOWED, threads=1)


def codes(found: RewardPreview, component: str | None) -> set[str]:
    return {finding.code for finding in found.findings if finding.component == component}


def test_values_are_those_of_the_rules_and_their_sum() -> None:
    found = previewed([WORDS, MOOD], ("p", "one two three four"), ("p", "one two"), ("q", " great"))
    values = [score.components["words"] for score in found.scores]
    assert values == [1.0, 0.5, 0.25]
    mood = [score.components["mood"] for score in found.scores]
    assert mood[0] == mood[1] == 0.0
    assert mood[2] > 0.5
    assert [score.total for score in found.scores] == pytest.approx([1.0, 0.5, 0.25 + 0.5 * mood[2]])
    words = found.components[0]
    assert (words.scored, words.failed, words.error, words.repeat_difference) == (3, 0, None, 0.0)
    assert words.spread is not None
    assert words.spread.mean == pytest.approx(1.75 / 3)
    assert (found.texts, found.groups, words.spread.zero_spread_share) == (3, 1, 0.0)
    assert found.components[1].spread is not None
    assert found.components[1].spread.zero_spread_share == 1.0
    assert codes(found, "mood") == {"zero_spread"}


def test_a_shadow_is_in_no_sum_and_a_text_that_the_run_would_drop_has_none() -> None:
    numeric = {"name": "sum", "rule": {"name": "numeric"}, "on_error": "drop"}
    found = previewed([{**WORDS, "shadow": True}, numeric], ("p", "it is 4"), ("p", "4"), answer="4")
    assert [score.total for score in found.scores] == [1.0, 1.0]
    found = previewed([{**WORDS, "shadow": True}, numeric], ("p", "it is 4"))
    assert found.scores[0].total is None
    assert set(found.scores[0].errors) == {"sum"}
    assert codes(found, "sum") == {"failures"}
    found = previewed([WORDS, {**numeric, "on_error": "zero"}], ("p", "one two"))
    assert found.scores[0].total == 0.5


def test_a_component_that_cannot_be_built_leaves_the_others_alone() -> None:
    server = {"name": "server", "http": {"url": "http://127.0.0.1:9/score"}}
    model = {"name": "judge", "model": {"source": {"path": "nowhere"}}}
    found = previewed([WORDS, server, model], ("p", "one two"))
    assert found.scores[0].components == {"words": 0.5}
    errors = {component.name: component.error for component in found.components}
    assert errors["words"] is None
    assert "not a public address" in str(errors["server"]), "the guard of outgoing calls holds here too"
    assert "nowhere" in str(errors["judge"])
    assert codes(found, "server") == codes(found, "judge") == {"error"}


def test_what_makes_a_reward_useless_is_said() -> None:
    found = previewed([{"name": "same", "rule": {"name": "regex", "params": {"pattern": "x"}}}], ("p", "a"), ("q", "b"))
    assert codes(found, "same") == {"constant"}
    texts = [(f"p{n}", "word " * n) for n in range(1, 13)]
    found = previewed([{"name": "long", "rule": {"name": "length", "params": {"target": 40}}}], *texts)
    assert codes(found, "long") == codes(found, None) == {"length"}
    found = previewed(
        [{"name": "ends", "rule": {"name": "regex", "params": {"pattern": "1"}}}],
        *texts[:3],
        *((f"1{n}", "1") for n in range(9)),
    )
    assert "saturated" in codes(found, "ends")


def test_a_noisy_reward_and_one_that_raises_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def noisy(exchanges: list[Exchange]) -> list[float]:
        calls.append(1)
        return [len(calls) + index for index, _ in enumerate(exchanges)]

    def broken(exchanges: list[Exchange]) -> list[float]:
        raise KeyError("no such thing")

    # Stands for a plugin that an operator installed; what tries it is real.
    made = {"words": noisy, "mood": broken}
    monkeypatch.setattr(trial, "build_component", lambda item, **_: Component(name=item.name, reward=made[item.name]))
    found = previewed([WORDS, MOOD], ("p", "one two"), ("p", "one"))
    assert found.components[0].repeat_difference == 1.0
    assert "not_repeatable" in codes(found, "words")
    assert found.components[1].error == "it raised KeyError: 'no such thing'"
