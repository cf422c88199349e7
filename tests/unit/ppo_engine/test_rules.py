"""Every built-in rule against values worked out by hand."""

from __future__ import annotations

import time

import pytest

from ppo_engine.config import RULES, RuleReward
from ppo_engine.errors import InvalidConfig
from ppo_engine.rewards.exchange import Unscored
from ppo_engine.rewards.rules import build_rule
from tests.support.exchanges import exchange


def score(name: str, response: str, *, prompt: str = "", **params: object) -> float:
    (value,) = build_rule(RuleReward(name=name, params=params))([exchange(response, prompt=prompt)])
    assert isinstance(value, float)
    return value


NEEDED: dict[str, dict[str, object]] = {
    "length": {"target": 3},
    "regex": {"pattern": "a"},
    "keyword": {"words": ["a"]},
}


@pytest.mark.parametrize("name", sorted(RULES))
def test_every_rule_of_the_spec_is_built_and_scores_an_empty_response(name: str) -> None:
    reward = build_rule(RuleReward(name=name, params=NEEDED.get(name, {})))
    values = reward([exchange("", prompt="The movie was"), exchange("")])
    assert [type(value) for value in values] == [float, float]


def test_sentiment_is_vaders_published_score() -> None:
    # The examples in the README of the VADER project.
    assert score("sentiment", "VADER is smart, handsome, and funny.") == pytest.approx(0.8316, abs=5e-5)
    assert score("sentiment", "Today SUX!") == pytest.approx(-0.5461, abs=5e-5)


def test_sentiment_reads_the_prompt_only_when_asked() -> None:
    assert score("sentiment", " great", prompt="It was not") < 0 < score("sentiment", " great", include_prompt=False)
    assert score("sentiment", "", prompt="wonderful", include_prompt=False) == 0.0


@pytest.mark.parametrize(
    ("response", "expected"), [("a b c d", 1.0), ("a b c", 0.75), ("a  b\nc d e", 0.75), ("", 0.0), ("a " * 40, -1.0)]
)
def test_length_falls_linearly_from_the_target(response: str, expected: float) -> None:
    assert score("length", response, target=4) == expected


@pytest.mark.parametrize(("response", "expected"), [("the answer is 42.", 1.0), ("fortytwo", 0.0), ("", 0.0)])
def test_regex_searches_anywhere(response: str, expected: float) -> None:
    assert score("regex", response, pattern=r"\b\d+\b") == expected


def test_regex_that_backtracks_for_ever_fails_in_time() -> None:
    start = time.monotonic()
    rule = build_rule(RuleReward(name="regex", params={"pattern": r"^(a|a)+(b|b)*\1+$"}))
    values = rule([exchange("a" * 64 + "!"), exchange("aa")])
    assert values == [Unscored("the pattern took more than 1 s on one response"), 1.0]
    assert time.monotonic() - start < 10


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("GOOD MORNING, all", 2 / 3),
        ("a goodish art", 0.0),
        ("feelgood", 0.0),
        ("Straße", 1 / 3),
        ("good good\n morning (STRASSE)", 1.0),
    ],
)
def test_keyword_counts_whole_words_without_case(response: str, expected: float) -> None:
    assert score("keyword", response, words=["good", "Good  Morning", "strasse"]) == pytest.approx(expected)


def repeated_share(words: list[str], n: int) -> float:
    """The definition, counted one n-gram after another."""
    seen: list[list[str]] = []
    repeats = 0
    for end in range(n, len(words) + 1):
        gram = words[end - n : end]
        repeats += gram in seen
        seen.append(gram)
    return repeats / len(seen) if seen else 0.0


@pytest.mark.parametrize("ngram", [1, 2, 3])
@pytest.mark.parametrize("response", ["a b a b a b", "one two three four", "so so so so", "one", "", "x y x y z x y"])
def test_repetition_is_the_share_of_ngrams_seen_before(response: str, ngram: int) -> None:
    assert score("repetition", response, ngram=ngram) == -repeated_share(response.split(), ngram)


@pytest.mark.parametrize(
    ("name", "params", "reason"),
    [
        ("sentimint", {}, "no rule `sentimint`"),
        ("length", {}, "target"),
        ("length", {"target": 0}, "target"),
        ("regex", {"pattern": "("}, "bad pattern"),
        ("sentiment", {"unknown": 1}, "unknown"),
    ],
)
def test_a_wrong_rule_is_refused_with_its_reason(name: str, params: dict[str, object], reason: str) -> None:
    with pytest.raises(InvalidConfig, match=reason):
        build_rule(RuleReward(name=name, params=params))
