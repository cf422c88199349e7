"""JSON Schemas that users write: checked when a spec is read, never fetched from anywhere. Torch-free.

A check only reads the schema; it never runs it on a value, because a spec is read where others wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from jsonschema import Draft202012Validator, SchemaError, validators
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from ppo_engine.patterns import MAX_PARTS, compile_pattern, parts_of

MAX_TESTS = 10_000
"""Most subschemas that one value may have to be tested against, references unfolded."""
MAX_SUBSCHEMAS = 2000
"""Most objects and booleans in a schema, and in those of one spec together: each takes 0.3 ms to check."""
MAX_VALUES = 20_000
"""Most values in a schema, containers included."""
MAX_REFERENCES = 1000
"""Each is looked up when the schema is read."""
MAX_MIXED = 100
"""Longest list that is compared member by member, because its members cannot be sorted."""
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_LISTS = ("allOf", "anyOf", "oneOf")
_SCHEMA_LISTS = (*_LISTS, "items", "prefixItems")
_SINGLES = ("not", "if", "then", "else")
_TABLES = ("dependentSchemas", "dependencies")


def checked_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """The same schema, if a response can be checked against it.

    Raises:
        ValueError: not a JSON Schema, or one that refers to something outside itself or to itself without end.
    """
    try:
        _check_size(schema)
        dialect(schema).check_schema(schema)
        _check_parts(schema)
    except SchemaError as error:
        raise ValueError(f"not a JSON Schema: {error.message[:200]} at {error.json_path}") from None
    except RecursionError:
        raise ValueError("the schema is nested too deeply") from None
    return schema


def _check_size(schema: dict[str, Any]) -> None:
    """Refuse what would take long to check: older drafts compare every two members of some lists."""
    references = 0
    for count, part in enumerate(_values(schema), start=1):
        if isinstance(part, dict):
            references += sum(keyword in part for keyword in _REFERENCES)
            mixed = [key for key, value in part.items() if key not in _SCHEMA_LISTS and _is_mixed(value)]
            if mixed:
                raise ValueError(
                    f"`{mixed[0][:64]}` has more than {MAX_MIXED} members that are not all texts or numbers"
                )
        if count > MAX_VALUES:
            raise ValueError(f"the schema has more than {MAX_VALUES} values")
    if count_subschemas(schema) > MAX_SUBSCHEMAS:
        raise ValueError(f"the schema has more than {MAX_SUBSCHEMAS} objects and booleans")
    if references > MAX_REFERENCES:
        raise ValueError(f"the schema has more than {MAX_REFERENCES} references")


def count_subschemas(value: Any) -> int:
    """How many parts of a JSON value may be schemas; reads no further than where they are too many."""
    parts = (item for item in _values(value) if isinstance(item, dict | bool))
    return sum(1 for _ in islice(parts, MAX_SUBSCHEMAS + 1))


def _is_mixed(value: Any) -> bool:
    if not isinstance(value, list) or len(value) <= MAX_MIXED:
        return False
    kinds = {type(item) for item in value}
    return not (kinds == {str} or kinds <= {int, float})


def dialect(schema: dict[str, Any]) -> Any:
    """The validator class of the draft that the schema names, without one the newest."""
    return validators.validator_for(schema, default=Draft202012Validator)


def _check_parts(schema: dict[str, Any]) -> None:
    """Patterns must compile, and references lead to a place in the schema and not back to where they stand."""
    resource = Resource.from_contents(schema, default_specification=DRAFT202012)
    resolver = Registry().with_resource("", resource).resolver()
    seen: set[str] = set()
    targets: dict[int, list[Any]] = {}
    sizes = 0
    for part in _objects(schema):
        seen |= part.keys()
        if part is not schema and isinstance(part.get("$id"), str):
            raise ValueError("`$id` is allowed at the top of the schema only")
        for pattern in [part.get("pattern"), *_keys(part.get("patternProperties"))]:
            if isinstance(pattern, str):
                sizes += parts_of(pattern)
                if sizes > 5 * MAX_PARTS:
                    raise ValueError(f"its patterns have more than {5 * MAX_PARTS} parts together")
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
    return (item for item in _values(value) if isinstance(item, dict))


def _values(value: Any) -> Iterator[Any]:
    """Every value in a JSON value, itself included."""
    left = [value]
    while left:
        item = left.pop()
        yield item
        if isinstance(item, dict):
            left.extend(item.values())
        elif isinstance(item, list):
            left.extend(item)


def _keys(value: Any) -> list[str]:
    return list(value) if isinstance(value, dict) else []
