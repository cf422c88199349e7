"""A gRPC client for tests, and what a refusal looks like to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from google.protobuf import json_format
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2 as details
from grpc_status import rpc_status

from api.rpc.server import FILES
from api.rpc.v1 import job_service_pb2 as pb
from api.rpc.v1.job_service_pb2_grpc import JobServiceStub

DEADLINE_SECONDS = 20
DETAILS = (details.ErrorInfo, details.RequestInfo, details.BadRequest, details.RetryInfo, details.QuotaFailure)


@contextmanager
def stub_at(address: str) -> Iterator[JobServiceStub]:
    """JobService at an address."""
    with grpc.insecure_channel(address) as channel:
        yield JobServiceStub(channel)


def message(document: dict[str, Any]) -> pb.JobSpec:
    """A spec's JSON as its message."""
    return json_format.ParseDict(document, pb.JobSpec())


METHODS = {
    method.full_name: method
    for file in FILES
    for service in file.services_by_name.values()
    for method in service.methods
}
"""Every method of the door, by its full name."""


def called(
    channel: grpc.Channel, method: MethodDescriptor, request: Message | bytes, metadata: Any = ()
) -> list[Message]:
    """All answers of a method; `bytes` go out as they are."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    wire = request if isinstance(request, bytes) else request.SerializeToString()
    read = GetMessageClass(method.output_type).FromString
    options = {"metadata": metadata, "timeout": DEADLINE_SECONDS}
    if method.client_streaming:
        return [channel.stream_unary(path, response_deserializer=read)(iter([wire]), **options)]
    if method.server_streaming:
        return list(channel.unary_stream(path, response_deserializer=read)(wire, **options))
    return [channel.unary_unary(path, response_deserializer=read)(wire, **options)]


@dataclass(frozen=True)
class Refusal:
    """A status with its details by kind."""

    code: grpc.StatusCode
    text: str
    details: dict[type, Any]

    @property
    def reason(self) -> str:
        return str(self.details[details.ErrorInfo].reason)

    @property
    def violations(self) -> dict[str, str]:
        return {found.field: found.reason for found in self.details[details.BadRequest].field_violations}


def refusal(call: Callable[[], Any]) -> Refusal:
    """The refusal that `call` must end with."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    error = caught.value
    status = rpc_status.from_call(error)
    found = {}
    for packed in status.details if status else ():
        kind = next(kind for kind in DETAILS if packed.Is(kind.DESCRIPTOR))
        found[kind] = kind()
        packed.Unpack(found[kind])
    return Refusal(error.code(), error.details(), found)
