"""JSON Schemas that users write: checked when a spec is read, never fetched from anywhere. Torch-free.

A check only reads the schema; it never runs it on a value, because a spec is read where others wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jsonschema import Draft202012Validator, SchemaError, validators
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from ppo_engine.patterns import compile_pattern

MAX_TESTS = 10_000
"""Most subschemas that one value may have to be tested against, references unfolded."""
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_LISTS = ("allOf", "anyOf", "oneOf")
_SINGLES = ("not", "if", "then", "else")
_TABLES = ("dependentSchemas", "dependencies")


def checked_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """The same schema, if a response can be checked against it.

    Raises:
        ValueError: not a JSON Schema, or one that refers to something outside itself or to itself without end.
    """
    try:
        dialect(schema).check_schema(schema)
        _check_parts(schema)
    except SchemaError as error:
        raise ValueError(f"not a JSON Schema: {error.message[:200]} at {error.json_path}") from None
    except RecursionError:
        raise ValueError("the schema is nested too deeply") from None
    return schema


def dialect(schema: dict[str, Any]) -> Any:
    """The validator class of the draft that the schema names, without one the newest."""
    return validators.validator_for(schema, default=Draft202012Validator)


def _check_parts(schema: dict[str, Any]) -> None:
    """Patterns must compile, and references lead to a place in the schema and not back to where they stand."""
    resource = Resource.from_contents(schema, default_specification=DRAFT202012)
    resolver = Registry().with_resource("", resource).resolver()
    seen: set[str] = set()
    targets: dict[int, list[Any]] = {}
    for part in _objects(schema):
        seen |= part.keys()
        if part is not schema and isinstance(part.get("$id"), str):
            raise ValueError("`$id` is allowed at the top of the schema only")
        for pattern in [part.get("pattern"), *_keys(part.get("patternProperties"))]:
            if isinstance(pattern, str):
                compile_pattern(pattern)
        references = [part[keyword] for keyword in _REFERENCES if isinstance(part.get(keyword), str)]
        targets[id(part)] = [_target(resolver, reference) for reference in references]
    if {"unevaluatedProperties", "patternProperties"} <= seen:
        raise ValueError("unevaluatedProperties beside patternProperties is not supported")
    counted: dict[int, int | None] = {}
    for part in _objects(schema):
        _tests(part, targets, counted)


def _target(resolver: Any, reference: str) -> Any:
    if not reference.startswith("#"):
        raise ValueError(f"`{reference}` refers to another document; only references like `#/$defs/name` are followed")
    try:
        return resolver.lookup(reference).contents
    except Unresolvable as error:
        raise ValueError(f"`{reference}` is nowhere in the schema") from error


def _tests(part: Any, targets: dict[int, list[Any]], counted: dict[int, int | None]) -> int:
    """How many subschemas a value is tested against, at most, to know whether it satisfies `part`."""
    if not isinstance(part, dict):
        return 1
    if id(part) not in counted:
        counted[id(part)] = None  # under way: to come here again is to go round
        nested = [*targets[id(part)], *_for_the_same_value(part)]
        counted[id(part)] = 1 + sum(_tests(other, targets, counted) for other in nested)
    tests = counted[id(part)]
    if tests is None:
        raise ValueError("the schema refers to itself without end")
    if tests > MAX_TESTS:
        raise ValueError(f"one value would be tested against more than {MAX_TESTS} subschemas")
    return tests


def _for_the_same_value(part: dict[str, Any]) -> Iterator[Any]:
    """The subschemas of a schema that are for its own value, not for a part of it."""
    yield from (part[keyword] for keyword in _SINGLES if keyword in part)
    for keyword in _LISTS:
        yield from part[keyword] if isinstance(part.get(keyword), list) else ()
    for keyword in _TABLES:
        yield from part[keyword].values() if isinstance(part.get(keyword), dict) else ()


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """Every JSON object in a value, itself included."""
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, dict):
            yield item
            left.extend(item.values())
        elif isinstance(item, list):
            left.extend(item)


def _keys(value: Any) -> list[str]:
    return list(value) if isinstance(value, dict) else []
