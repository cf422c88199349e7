"""The rule `json_schema`: nothing is fetched, and no pattern of a schema can hang a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from jsonschema import Draft202012Validator, SchemaError, ValidationError, validators
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from ppo_engine.config import JSONSchemaRule
from ppo_engine.patterns import compile_pattern, found
from ppo_engine.rewards.exchange import Exchange, ExchangeScore

Errors = Iterator[ValidationError]


def json_schema(params: JSONSchemaRule) -> ExchangeScore:
    """1 for a response that is JSON and satisfies the schema, `partial` for other JSON, 0 for anything else.

    Raises:
        ValueError: not a schema, or one that refers to something outside itself.
    """
    validator = _validator(params.json_schema)

    def score(exchange: Exchange) -> float:
        try:
            value = json.loads(exchange.response, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            return 0.0
        return 1.0 if _satisfies(validator, value) else params.partial

    return score


def _satisfies(validator: Any, value: Any) -> bool:
    try:
        return bool(validator.is_valid(value))
    except RecursionError:  # nested more deeply than anything a schema means
        return False


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _validator(schema: dict[str, Any]) -> Any:
    """A validator that searches patterns within a time limit, and whose registry fetches nothing."""
    base: Any = validators.validator_for(schema, default=Draft202012Validator)
    try:
        base.check_schema(schema)
    except SchemaError as error:
        raise ValueError(f"not a JSON Schema: {error.message[:200]} at {error.json_path}") from error
    _check_parts(schema)
    limited: Any = validators.extend(  # type: ignore[no-untyped-call]
        base,
        {
            "pattern": _pattern,
            "patternProperties": _pattern_properties,
            "additionalProperties": _additional_properties,
        },
    )
    validator = limited(schema, registry=Registry())
    _check_end(validator)
    return validator


def _check_parts(schema: dict[str, Any]) -> None:
    """Patterns must compile, and references lead to a place in the schema."""
    resource = Resource.from_contents(schema, default_specification=DRAFT202012)
    resolver = Registry().with_resource("", resource).resolver()
    seen: set[str] = set()
    for part in _objects(schema):
        seen |= part.keys()
        for pattern in [part.get("pattern"), *_keys(part.get("patternProperties"))]:
            if isinstance(pattern, str):
                compile_pattern(pattern)
        for keyword in ("$ref", "$dynamicRef"):
            target = part.get(keyword)
            if isinstance(target, str):
                _check_reference(resolver, target)
    if {"unevaluatedProperties", "patternProperties"} <= seen:
        raise ValueError("unevaluatedProperties beside patternProperties is not supported")


def _check_reference(resolver: Any, target: str) -> None:
    if not target.startswith("#"):
        raise ValueError(f"`{target}` refers to another document; only references like `#/$defs/name` are followed")
    try:
        resolver.lookup(target)
    except Unresolvable as error:
        raise ValueError(f"`{target}` is nowhere in the schema") from error


def _check_end(validator: Any) -> None:
    try:
        validator.is_valid({})
    except RecursionError as error:
        raise ValueError("the schema refers to itself without end") from error


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


def _pattern(validator: Any, pattern: str, instance: Any, _schema: Any) -> Errors:
    if validator.is_type(instance, "string") and not found(compile_pattern(pattern), instance):
        yield ValidationError("does not match the pattern")


def _pattern_properties(validator: Any, properties: dict[str, Any], instance: Any, _schema: Any) -> Errors:
    if not validator.is_type(instance, "object"):
        return
    for pattern, subschema in properties.items():
        for name, value in instance.items():
            if found(compile_pattern(pattern), name):
                yield from validator.descend(value, subschema, path=name, schema_path=pattern)


def _additional_properties(validator: Any, allowed: Any, instance: Any, schema: dict[str, Any]) -> Errors:
    """For the properties that neither `properties` nor `patternProperties` beside it name."""
    if not validator.is_type(instance, "object"):
        return
    known, patterns = schema.get("properties", {}), [compile_pattern(p) for p in schema.get("patternProperties", {})]
    for name, value in instance.items():
        if name not in known and not any(found(pattern, name) for pattern in patterns):
            yield from validator.descend(value, allowed, path=name)
