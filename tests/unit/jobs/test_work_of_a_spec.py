"""Reading a spec is bounded work, however many schemas and patterns its rewards have."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.errors import InvalidSpec
from jobs.spec import parse_spec
from ppo_engine import patterns, schemas
from ppo_engine.schemas import MAX_SUBSCHEMAS, count_subschemas
from tests.support.specs import spec_document


def judge(index: int, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": f"r{index}", "rule": {"name": "json_schema", "params": {"json_schema": schema}}}


def properties(count: int) -> dict[str, Any]:
    """A schema of `count` objects and booleans."""
    return {"properties": {str(number): number % 2 == 0 or {} for number in range(count - 2)}}


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the schemas that were checked against their draft, one for each time."""
    sizes: list[int] = []
    dialect = schemas.dialect

    def counted(schema: dict[str, Any]) -> Any:
        sizes.append(count_subschemas(schema))
        return dialect(schema)

    monkeypatch.setattr(schemas, "dialect", counted)
    return sizes


def test_as_many_schemas_as_a_spec_may_have_are_read_once_each(read: list[int]) -> None:
    rewards = [judge(index, properties(MAX_SUBSCHEMAS // 64)) for index in range(64)]
    assert len(parse_spec(spec_document(rewards=rewards)).rewards) == 64
    assert read == [MAX_SUBSCHEMAS // 64] * 64


def test_schemas_that_are_too_large_together_are_not_read(read: list[int]) -> None:
    rewards = [judge(index, properties(MAX_SUBSCHEMAS)) for index in range(64)]
    with pytest.raises(InvalidSpec) as refused:
        parse_spec(spec_document(rewards=rewards))
    problem = {item.pointer: item.code for item in refused.value.problems}
    assert problem == {"/rewards/1/rule/params/json_schema": "too_long"}
    assert sum(read) == MAX_SUBSCHEMAS


def test_a_spec_with_other_faults_is_read_twice_at_most(read: list[int]) -> None:
    rewards = [judge(index, properties(MAX_SUBSCHEMAS)) for index in range(64)]
    with pytest.raises(InvalidSpec):
        parse_spec(spec_document(rewards=rewards, seed="x"))
    assert sum(read) <= 2 * MAX_SUBSCHEMAS  # with low and with high stand-ins for what is broken


def test_a_pattern_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    compiled = patterns._compiled
    compiled.cache_clear()
    monkeypatch.setattr(patterns, "_compiled", lambda text: lengths.append(len(text)) or compiled(text))
    names = [
        {"name": f"r{i}", "rule": {"name": "regex", "params": {"pattern": f"{i:03}" + "a" * 997}}} for i in range(64)
    ]
    parse_spec(spec_document(rewards=names))
    assert lengths == [1000] * 64
