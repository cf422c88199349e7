"""The rule `json_schema`: nothing is fetched, and no pattern of a schema can hang a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from jsonschema import ValidationError, validators
from referencing import Registry

from ppo_engine.config import JSONSchemaRule
from ppo_engine.patterns import compile_pattern, found
from ppo_engine.rewards.exchange import Exchange, ExchangeScore
from ppo_engine.schemas import dialect

Errors = Iterator[ValidationError]


def json_schema(params: JSONSchemaRule) -> ExchangeScore:
    """1 for a response that is JSON and satisfies the schema, `partial` for other JSON, 0 for anything else."""
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
    limited: Any = validators.extend(  # type: ignore[no-untyped-call]
        dialect(schema),
        {
            "pattern": _pattern,
            "patternProperties": _pattern_properties,
            "additionalProperties": _additional_properties,
        },
    )
    return limited(schema, registry=Registry())


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
