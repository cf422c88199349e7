"""The two doors say the same: every operation has its twin, with the same parameters and the same answer."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message_factory import GetMessageClass

from api.rpc.v1 import job_service_pb2 as pb
from docs.api_pages import openapi
from docs.twins import GRPC_ONLY, OTHER_SHAPES, RENAMED, TWINS
from tests.support.grpc_api import METHODS
from tests.support.openapi import operations, success
from tests.support.twin_shapes import answer_differences

PACKAGE = "ppo.v1."
NUMBERS = (FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_INT64)
PAIRS = {name: twin for name, twin in TWINS.items() if twin.rpc}


def test_every_operation_has_a_row():
    """docs/twins.py says how to add one."""
    assert set(operations()) == set(TWINS), "each operation needs a row in docs/twins.py"
    assert [name for name, twin in TWINS.items() if bool(twin.rpc) == bool(twin.http_only)] == []


def test_every_method_has_an_operation():
    named = [name for twin in PAIRS.values() for name in (twin.rpc, *twin.also)] + list(GRPC_ONLY)
    assert sorted(PACKAGE + name for name in named) == sorted(METHODS), "docs/twins.py pairs them"


def test_exceptions_name_what_exists():
    assert set(OTHER_SHAPES) | set(RENAMED) <= set(PAIRS)
    for name, renamed in RENAMED.items():
        assert set(renamed) <= {parameter["name"] for parameter in operations()[name]["parameters"]}


@pytest.mark.parametrize("name", sorted(set(PAIRS) - set(OTHER_SHAPES)))
def test_answers_have_the_same_fields(name: str):
    schema = success(operations()[name])
    answer = METHODS[PACKAGE + PAIRS[name].rpc].output_type
    if schema is not None:
        assert list(answer_differences(openapi(), schema, answer)) == []


@pytest.mark.parametrize("name", sorted(PAIRS))
def test_requests_have_the_same_parameters(name: str):
    """Parameters of the path, the query and headers are fields of the gRPC request, and a body is one field or all."""
    operation, method = operations()[name], METHODS[PACKAGE + PAIRS[name].rpc]
    parts = [field.message_type for field in method.input_type.fields] if method.client_streaming else []
    fields = {field.name for kind in [method.input_type, *filter(None, parts)] for field in kind.fields}
    renamed = RENAMED.get(name, {})
    ours = {renamed.get(found["name"], found["name"]) for found in operation.get("parameters", [])} - {""}
    assert ours <= fields
    if "requestBody" not in operation:
        assert fields <= ours


@pytest.mark.parametrize("name", sorted(PAIRS))
def test_examples_are_requests_of_their_method(name: str):
    twin = PAIRS[name]
    input_type = METHODS[PACKAGE + twin.rpc].input_type
    for request in twin.requests:
        json_format.ParseDict(_with_numbers(request, input_type), GetMessageClass(input_type)())


def _with_numbers(request: dict[str, Any], input_type: Descriptor) -> dict[str, Any]:
    """Plain JSON: a name like `$STEP` stands for a number where the field is one, and bytes are written in base64."""
    numbers = {field.name for field in input_type.fields if field.type in NUMBERS}
    plain = {name: base64.b64encode(v).decode() if isinstance(v, bytes) else v for name, v in request.items()}
    return {name: 1 if name in numbers and str(value).startswith("$") else value for name, value in plain.items()}


def test_the_walk_notices_every_kind_of_difference():
    assert _differences({"points": {"type": "array", "items": {"type": "object", "properties": {}}}}, pb.Series) == [
        "Series.points.step is only in the proto",
        "Series.points.time is only in the proto",
        "Series.points.value is only in the proto",
    ]
    progress = {"step": {"type": "integer"}, "steps_total": {"type": "string"}, "percent": {"type": "number"}}
    assert _differences({**progress, "eta_seconds": {"type": "number"}, "more": {}}, pb.Progress) == [
        "Progress.more is only in JSON",
        "Progress.eta_seconds can be absent only in the proto",
        "Progress.steps_total has another type: string in JSON",
    ]


def _differences(properties: dict[str, Any], message: Any) -> list[str]:
    descriptor: Descriptor = message.DESCRIPTOR
    schema = {"type": "object", "properties": properties}
    return list(answer_differences({"components": {"schemas": {}}}, schema, descriptor))
