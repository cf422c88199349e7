"""The rule `json_schema`: what satisfies a schema, and schemas that could do harm."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ppo_engine.config import RuleReward
from ppo_engine.rewards.exchange import Unscored
from ppo_engine.rewards.rules import build_rule
from tests.support.exchanges import exchange

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "pattern": "^[A-Z]"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"],
    "additionalProperties": False,
}


def judge(schema: dict[str, Any], response: str, partial: float = 0.25) -> Any:
    rule = build_rule(RuleReward(name="json_schema", params={"json_schema": schema, "partial": partial}))
    return rule([exchange(response)])[0]


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ('{"name": "Ann", "age": 3}', 1.0),
        (' \n{"name": "Ann"}\n', 1.0),
        ('{"name": "ann"}', 0.25),
        ('{"name": "Ann", "age": -1}', 0.25),
        ('{"name": "Ann", "extra": 1}', 0.25),
        ("[]", 0.25),
        ('{"name": "Ann"', 0.0),
        ('{"name": "Ann"} and more', 0.0),
        ('{"name": "Ann", "age": NaN}', 0.0),
        ("Infinity", 0.0),
        ("", 0.0),
        ("[" * 100_000, 0.0),
        ("9" * 10_000, 0.0),
    ],
)
def test_only_whole_and_valid_json_counts(response: str, expected: float) -> None:
    assert judge(PERSON, response) == expected


@pytest.mark.parametrize(
    ("document", "expected"), [({"x-a": 1}, 1.0), ({"x-a": "1"}, 0.25), ({"y": 1}, 0.25), ({"id": "i", "x-b": 2}, 1.0)]
)
def test_patterns_of_property_names(document: Any, expected: float) -> None:
    schema = {
        "properties": {"id": {}},
        "patternProperties": {"^x-": {"type": "integer"}},
        "additionalProperties": False,
    }
    assert judge(schema, json.dumps(document)) == expected


def test_additional_properties_may_have_a_schema() -> None:
    schema = {"properties": {"a": {}}, "additionalProperties": {"type": "integer"}}
    assert [judge(schema, text) for text in ('{"a": "x", "b": 1}', '{"b": "x"}')] == [1.0, 0.25]


def test_references_within_the_schema_are_followed() -> None:
    tree = {
        "$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
        "$ref": "#/$defs/tree",
    }
    assert [judge(tree, text) for text in ("[[], [[]]]", "[[], [1]]")] == [1.0, 0.25]
    assert judge(tree, "[" * 600 + "]" * 600) == 0.25  # deeper than Python's stack


def test_an_older_draft_is_read_as_such() -> None:
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "integer"}]}
    assert [judge(schema, text) for text in ("[1]", '["a"]')] == [1.0, 0.25]


def test_nothing_is_fetched_even_if_a_reference_is_overlooked(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[Any] = []
    monkeypatch.setattr("urllib.request.urlopen", fetched.append)
    monkeypatch.setattr("ppo_engine.schemas._check_parts", lambda schema: None)
    schema = {"properties": {"a": {"$ref": "http://127.0.0.1:9/schema"}}}
    assert isinstance(judge(schema, '{"a": 1}'), Unscored)
    assert fetched == []


@pytest.mark.parametrize(
    ("schema", "document"),
    [
        ({"pattern": r"^(a|a)+(b|b)*\1+$"}, "a" * 64 + "!"),
        ({"patternProperties": {r"^(a|a)+(b|b)*\1+$": {}}}, {"a" * 64 + "!": 1}),
        ({"additionalProperties": False, "patternProperties": {r"^(a|a)+(b|b)*\1+$": {}}}, {"a" * 64 + "!": 1}),
    ],
)
def test_a_pattern_that_backtracks_for_ever_fails_in_time(schema: dict[str, Any], document: Any) -> None:
    assert judge(schema, json.dumps(document)) == Unscored("the pattern took more than 1 s on one response")
