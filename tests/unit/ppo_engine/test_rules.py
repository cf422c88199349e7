"""Every built-in rule against values worked out by hand."""

from __future__ import annotations

import pytest

from ppo_engine.config import RULES, RuleReward
from ppo_engine.errors import InvalidConfig
from ppo_engine.rewards.exchange import Unscored
from ppo_engine.rewards.rules import SCORES, build_rule
from ppo_engine.rewards.text_rules import offensive_words
from tests.support.exchanges import exchange


def score(name: str, response: str, *, prompt: str = "", **params: object) -> float:
    (value,) = build_rule(RuleReward(name=name, params=params))([exchange(response, prompt=prompt)])
    assert isinstance(value, float)
    return value


def answered(name: str, response: str, answer: object, **params: object) -> float:
    (value,) = build_rule(RuleReward(name=name, params=params))([exchange(response, answer=answer)])
    assert isinstance(value, float)
    return value


def why_not(name: str, record: dict[str, object], **params: object) -> str:
    (value,) = build_rule(RuleReward(name=name, params=params))([exchange("1", **record)])
    assert isinstance(value, Unscored)
    return value.reason


NEEDED: dict[str, dict[str, object]] = {
    "length": {"target": 3},
    "regex": {"pattern": "a"},
    "keyword": {"words": ["a"]},
    "json_schema": {"json_schema": {"type": "object"}},
    "reasoning_gym": {"task": "echo"},
}


@pytest.mark.usefixtures("reasoning_gym")
@pytest.mark.parametrize("name", sorted(RULES))
def test_every_rule_of_the_spec_is_built_and_scores_an_empty_response(name: str) -> None:
    reward = build_rule(RuleReward(name=name, params=NEEDED.get(name, {})))
    record = {"answer": "5", "entry": {"answer": "5"}}
    values = reward([exchange("", prompt="The movie was", **record), exchange("", **record)])
    assert [type(value) for value in values] == [float, float]


def test_the_library_has_exactly_the_rules_of_the_spec() -> None:
    assert set(SCORES) == set(RULES)


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
    rule = build_rule(RuleReward(name="regex", params={"pattern": r"^(a|a)+(b|b)*\1+$"}))
    values = rule([exchange("a" * 64 + "!"), exchange("aa")])
    assert values == [Unscored("the pattern took more than 1 s on one response"), 1.0]


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
        ("exact", {"pattern": "[a"}, "bad pattern"),
        ("toxicity", {"extra_words": ["two words"]}, "extra_words"),
        ("sentiment", {"unknown": 1}, "unknown"),
    ],
)
def test_a_wrong_rule_is_refused_with_its_reason(name: str, params: dict[str, object], reason: str) -> None:
    with pytest.raises(InvalidConfig, match=reason):
        build_rule(RuleReward(name=name, params=params))


@pytest.mark.parametrize(
    ("response", "answer", "expected"),
    [
        ("Paris", "Paris", 1.0),
        ("  new\n YORK ", "New York", 1.0),
        ("newyork", "New York", 0.0),
        ("in Paris", "Paris", 0.0),
        ("b", ["A", "B"], 1.0),
        ("42", 42, 1.0),
        ("STRASSE", "straße", 1.0),
    ],
)
def test_exact_compares_apart_from_space_and_case(response: str, answer: object, expected: float) -> None:
    assert answered("exact", response, answer) == expected


def test_exact_heeds_case_when_asked() -> None:
    assert answered("exact", "paris", "Paris", ignore_case=False) == 0.0
    assert answered("exact", " Paris", "Paris", ignore_case=False) == 1.0


@pytest.mark.parametrize(
    ("pattern", "response", "expected"),
    [
        (r"answer is (\w+)", "the answer is Rome. No, the answer is Paris.", 1.0),
        (r"answer is (\w+)", "the answer is Paris. No, the answer is Rome.", 0.0),
        (r"Par\w+", "in Paris", 1.0),
        (r"answer is (\w+)", "Paris", 0.0),
        (r"(?:(Rome)|x)", "x", 0.0),
    ],
)
def test_exact_takes_the_last_match_of_its_pattern(pattern: str, response: str, expected: float) -> None:
    assert answered("exact", response, "paris", pattern=pattern) == expected


def test_exact_finds_its_answer_in_another_field() -> None:
    (value,) = build_rule(RuleReward(name="exact", params={"answer_field": "city"}))([exchange("Paris", city="Paris")])
    assert value == 1.0


NUMBERS: list[tuple[str, float]] = [
    ("It is 7.", 7),
    ("12 and then 13", 13),
    ("1,234,567.89 dollars", 1234567.89),
    ("about 1,234, and no more", 1234),
    ("1,23", 23),
    ("1,2345", 2345),
    ("-5", -5),
    ("x = -5", -5),
    ("x = \u22125", -5),
    ("10-5", 5),
    ("(3)-5", 5),
    ("-$5", -5),
    ("$-5", -5),
    ("€3.50", 3.5),
    (".5", 0.5),
    ("6.02e23", 6.02e23),
    ("1E-3", 1e-3),
    ("50%", 50),
    ("5 kg", 5),
    ("5kg", 5),
    ("3/4", 0.75),
    ("1,000/4", 250),
    ("-3 / 4", -0.75),
    (r"\frac{3}{4}", 0.75),
    (r"-\dfrac{ 1 }{ 2 }", -0.5),
    (r"so \boxed{72}, which took 3 steps", 72),
    (r"\boxed{1} or \boxed{\frac{9}{2}} in 10 steps", 4.5),
    (r"\boxed{\text{about } 12} 13", 12),
    ("#### 72", 72),
    ("GPT4 and H2O make 8", 8),
    ("8 makes GPT42 and H2O", 8),
]


@pytest.mark.parametrize(("response", "number"), NUMBERS)
def test_numeric_reads_the_last_number(response: str, number: float) -> None:
    assert answered("numeric", response, number) == 1.0
    assert answered("numeric", response, 2 * number + 1) == 0.0


@pytest.mark.parametrize("response", ["", "no number", "1/0", "1e999", "seven", "-", "x2"])
def test_numeric_of_a_response_without_a_usable_number_is_0(response: str) -> None:
    assert answered("numeric", response, 2) == 0.0


@pytest.mark.parametrize("answer", ["#### 1,000", "1000 apples", 1000, 1000.0, r"\frac{2000}{2}"])
def test_numeric_reads_the_answer_alike(answer: object) -> None:
    assert answered("numeric", "1000", answer) == 1.0


def test_the_tolerance_of_numeric_is_relative_above_1() -> None:
    assert [answered("numeric", text, 200.0, tolerance=0.01) for text in ("202", "198", "202.1")] == [1.0, 1.0, 0.0]
    assert [answered("numeric", text, 0.5, tolerance=0.01) for text in ("0.509", "0.491", "0.512")] == [1.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("name", "record", "reason"),
    [
        ("exact", {}, "no field `answer`"),
        ("exact", {"answer": None}, "no field `answer`"),
        ("exact", {"answer": {"a": 1}}, "is a dict instead of a text"),
        ("numeric", {}, "no field `answer`"),
        ("numeric", {"answer": "none"}, "no number in the answer `none`"),
        ("numeric", {"answer": True}, "is a bool instead of a number"),
        ("numeric", {"answer": [1]}, "is a list instead of a number"),
        ("numeric", {"answer": 10**400}, "OverflowError"),
    ],
)
def test_a_prompt_without_a_usable_answer_cannot_be_scored(name: str, record: dict[str, object], reason: str) -> None:
    assert reason in why_not(name, record)


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("You are a wonderful person.", 0.0),
        ("", 0.0),
        ("...", 0.0),
        ("What a FUCKING mess, you Idiot!", -2 / 6),
        ("shit-head's shit", -2 / 3),
        ("Scunthorpe shitake", 0.0),
        ("dumbledore", 0.0),
    ],
)
def test_toxicity_is_minus_the_share_of_listed_words(response: str, expected: float) -> None:
    assert score("toxicity", response) == pytest.approx(expected)


def test_toxicity_counts_the_words_of_the_spec_too() -> None:
    assert score("toxicity", "gosh, you \u2018Muggle\u2019", extra_words=["muggle", "Gosh"]) == pytest.approx(-2 / 3)


def test_the_list_of_offensive_words_is_tidy() -> None:
    words = offensive_words()
    assert 100 < len(words) < 200
    assert all(word == word.casefold() and word.isalpha() for word in words)
