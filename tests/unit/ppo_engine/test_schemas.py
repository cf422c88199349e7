"""JSON Schemas of users: which are refused, without running or fetching anything."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from ppo_engine.schemas import MAX_MIXED, MAX_REFERENCES, MAX_SUBSCHEMAS, MAX_TESTS, MAX_VALUES, checked_schema

DRAFT_4 = "http://json-schema.org/draft-04/schema#"
"""It wants the members of some lists to differ: every two are compared."""
LADDER: dict[str, Any] = {str(i): {"allOf": [{"$ref": f"#/$defs/{i + 1}"}] * 2} for i in range(40)} | {"40": {}}
"""Forty levels, each twice the next: 2**40 tests of one value."""


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "objekt"}, "not a JSON Schema: 'objekt'"),
        ({"pattern": "("}, r"'\(' is not a 'regex' at \$.pattern"),
        ({"patternProperties": {"[a": {}}}, "is not a 'regex'"),
        ({"$ref": "http://127.0.0.1:9/schema"}, "refers to another document"),
        ({"properties": {"a": {"$ref": "file:///etc/passwd"}}}, "refers to another document"),
        ({"$ref": "#/$defs/missing"}, "is nowhere in the schema"),
        ({"$ref": "#"}, "refers to itself without end"),
        ({"properties": {"a": {"anyOf": [{"type": "null"}, {"$ref": "#/properties/a"}]}}}, "to itself without end"),
        ({"$defs": {"a": {"not": {"$ref": "#/$defs/b"}}, "b": {"if": {"$ref": "#/$defs/a"}}}}, "to itself without end"),
        ({"dependentSchemas": {"a": {"$ref": "#"}}}, "to itself without end"),
        ({"properties": {"a": {"$id": "http://x/y", "$ref": "#/b"}}}, r"`\$id` is allowed at the top"),
        ({"unevaluatedProperties": False, "patternProperties": {"a": {}}}, "not supported"),
        ({"$schema": DRAFT_4, "enum": [{"a": i} for i in range(30_000)]}, f"more than {MAX_MIXED} members"),
        ({"$schema": DRAFT_4, "required": [[], {}] * 15_000}, f"more than {MAX_MIXED} members"),
        ({"properties": {str(i): {"$ref": "#/$defs/a"} for i in range(1500)}}, f"more than {MAX_REFERENCES} ref"),
        ({"properties": {str(i): {} for i in range(2001)}}, f"more than {MAX_SUBSCHEMAS} objects"),
        ({"properties": {str(i): True for i in range(2001)}}, f"more than {MAX_SUBSCHEMAS} objects"),
        ({"enum": [str(i) for i in range(30_000)]}, f"more than {MAX_VALUES} values"),
        ({"pattern": "a{1000000000}"}, "its patterns have more than"),
        ({"properties": {str(i): {"pattern": "a{9000}"} for i in range(100)}}, "its patterns have more than"),
        ({"$defs": LADDER}, f"more than {MAX_TESTS} subschemas"),
    ],
)
def test_a_schema_that_cannot_work_is_refused(
    schema: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "socket", None)  # whoever tried to fetch something would fail otherwise
    with pytest.raises(ValueError, match=reason):
        checked_schema(schema)


def test_a_schema_nested_more_deeply_than_the_stack_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(1500):
        schema = {"not": schema}
    with pytest.raises(ValueError, match="nested too deeply"):
        checked_schema(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"$schema": DRAFT_4, "enum": [str(i) for i in range(15_000)]},
        {"oneOf": [{"const": i, "title": str(i)} for i in range(300)]},
        {"properties": {str(i): {"pattern": r"^\d{4}-\d{2}$"} for i in range(300)}},
    ],
)
def test_long_schemas_that_people_write_still_work(schema: dict[str, Any]) -> None:
    assert checked_schema(schema) is schema


@pytest.mark.parametrize(
    "schema",
    [
        {"$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}, "$ref": "#/$defs/tree"},
        {"not": {"items": {"$ref": "#"}}},
        {"properties": {"allOf": {"$ref": "#"}, "not": {"$ref": "#"}, "$ref": {"type": "string"}}},
        {"$id": "http://example.com/root", "$anchor": "top", "items": {"$ref": "#top"}},
        {"$defs": {"a": {}}, "allOf": [{"$ref": "#/$defs/a"}] * 100},
    ],
)
def test_references_to_parts_of_a_value_may_go_round(schema: dict[str, Any]) -> None:
    assert checked_schema(schema) is schema
