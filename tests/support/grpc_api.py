"""A gRPC client for tests, and what a refusal looks like to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from google.protobuf import json_format
from google.rpc import error_details_pb2 as details
from grpc_status import rpc_status

from api.rpc.v1 import job_service_pb2 as pb
from api.rpc.v1.job_service_pb2_grpc import JobServiceStub

DEADLINE_SECONDS = 20
DETAILS = (details.ErrorInfo, details.RequestInfo, details.BadRequest, details.RetryInfo)


@contextmanager
def stub_at(address: str) -> Iterator[JobServiceStub]:
    """JobService at an address."""
    with grpc.insecure_channel(address) as channel:
        yield JobServiceStub(channel)


def message(document: dict[str, Any]) -> pb.JobSpec:
    """A spec's JSON as its message."""
    return json_format.ParseDict(document, pb.JobSpec())


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
