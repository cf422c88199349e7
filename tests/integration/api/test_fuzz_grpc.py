"""Whatever comes, the gRPC door answers or refuses for a reason: never INTERNAL, never UNKNOWN.

`make fuzz` looks longer, with other inputs each time: PPO_FUZZ_EXAMPLES is the number for each method.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from jobs.auth import LOCAL
from jobs.db import Database
from tests.support.attempts import claimed, record_steps, submitted
from tests.support.grpc_api import METHODS, called, refusal
from tests.support.http_api import Served

pytestmark = pytest.mark.slow

EXAMPLES = int(os.environ.get("PPO_FUZZ_EXAMPLES", "0"))
FUZZ = settings(
    max_examples=EXAMPLES or 8,
    derandomize=not EXAMPLES,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
DEFECTS = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.UNIMPLEMENTED}
GARBAGE = b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"
SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_STRING: st.one_of(st.text(max_size=8), st.sampled_from(["", "\x00", "local", "0", "last"])),
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=8),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_DOUBLE: st.floats(),
    FieldDescriptor.TYPE_INT32: st.one_of(st.integers(-2, 3), st.integers(-(2**31), 2**31 - 1)),
    FieldDescriptor.TYPE_INT64: st.one_of(st.integers(-2, 3), st.sampled_from([-(2**63), 2**62 + 1, 2**63 - 1])),
    FieldDescriptor.TYPE_ENUM: st.integers(-1, 99),
}


@st.composite
def messages(draw: st.DrawFn, kind: Descriptor, job_ids: list[str], depth: int = 0) -> Message:
    """A message with some of its fields set; every second job is one that exists."""
    message = GetMessageClass(kind)()
    if kind.full_name == "google.protobuf.Struct":
        return json_format.ParseDict(
            draw(st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=2)), message
        )
    for field in kind.fields:
        if field.name == "timeout_seconds":
            message.timeout_seconds = draw(st.sampled_from([0.0, -1.0, 1e9, float("nan")]))
        elif field.name == "job_id":
            message.job_id = draw(st.sampled_from([*job_ids, draw(SCALARS[field.type])]))
        elif draw(st.booleans()) and depth < 5:
            _fill(draw, message, field, job_ids, depth)
    return message


def _fill(draw: st.DrawFn, message: Message, field: FieldDescriptor, job_ids: list[str], depth: int) -> None:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        value = field.message_type.fields_by_name["value"]
        if value.message_type is None:
            getattr(message, field.name)[draw(SCALARS[FieldDescriptor.TYPE_STRING])] = draw(SCALARS[value.type])
    elif field.is_repeated:
        one = SCALARS[field.type] if field.message_type is None else messages(field.message_type, job_ids, depth + 1)
        getattr(message, field.name).extend(draw(st.lists(one, max_size=2)))
    elif field.message_type is not None:
        getattr(message, field.name).CopyFrom(draw(messages(field.message_type, job_ids, depth + 1)))
    else:
        setattr(message, field.name, draw(SCALARS[field.type]))


@pytest.fixture
def channel(served: Served) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(served.grpc) as channel:
        yield channel


@pytest.fixture
def job_ids(database: Database) -> list[str]:
    held = claimed(database, submitted(database, LOCAL))
    record_steps(database, held, 1, 2)
    return [held.lease.job_id, submitted(database, LOCAL)]


def test_bytes_that_are_no_message_are_refused_by_every_method(channel: grpc.Channel):
    for name, method in METHODS.items():
        if method.input_type.fields:
            refused = refusal(lambda method=method: called(channel, method, GARBAGE))
            assert (refused.code, refused.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "malformed_body"), name


def test_no_message_meets_a_defect(channel: grpc.Channel, job_ids: list[str]):
    for name, method in METHODS.items():
        # The stream of a job that waits has no end, and with a key all other calls need one.
        if not name.endswith((".WatchJob", ".CreateKey")):
            fuzz(channel, method, job_ids)


def fuzz(channel: grpc.Channel, method: MethodDescriptor, job_ids: list[str]) -> None:
    """Call one method with many messages."""

    @FUZZ
    @given(messages(method.input_type, job_ids))
    def answered(request: Message) -> None:
        code = code_of(channel, method, request)
        assert code not in DEFECTS, f"{method.full_name} {code} on {request}"

    answered()


def code_of(channel: grpc.Channel, method: MethodDescriptor, request: Message) -> grpc.StatusCode:
    try:
        called(channel, method, request)
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return grpc.StatusCode.OK
