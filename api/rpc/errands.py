"""Errands: engine work while the caller waits."""

# ruff: noqa: N802, ARG002 (names and parameters are those of the generated base class)

from __future__ import annotations

from functools import partial
from typing import Any

from google.protobuf import json_format

from api.context import Context
from api.errands import DEFAULT_WAIT_SECONDS, MAX_WAIT_SECONDS, asked, waited
from api.parameters import job_id
from api.plans import plan
from api.rpc import convert
from api.rpc.gate import CALLER
from api.rpc.v1 import job_service_pb2 as pb
from api.rpc.v1.job_service_pb2_grpc import JobServiceServicer
from jobs.errand_views import ErrandView
from jobs.errors import InvalidArgument, Problem
from jobs.generating import ask_generation
from jobs.previews import ask_preview


class ErrandRpcs(JobServiceServicer):
    """The part of JobService whose answers an engine has to work for."""

    _context: Context

    async def PreviewReward(self, request: pb.PreviewRewardRequest, context: Any) -> pb.PreviewRewardResponse:
        """Score texts with the rewards of a spec."""
        body, settings = convert.document(request.request), self._context.settings
        where: dict[str, Any] = {"roots": settings.model_roots, "reach": settings.reach}
        ask = partial(ask_preview, self._context.db, CALLER.get(), body, **where)
        view = await asked(self._context, CALLER.get(), ask, _wait_seconds(request))
        return pb.PreviewRewardResponse(errand=errand(view))

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> pb.GenerateResponse:
        """Answer prompts with a job's policy."""
        job, body = job_id(request.job_id), convert.document(request.request)
        ask = partial(ask_generation, self._context.db, CALLER.get(), job, body)
        view = await asked(self._context, CALLER.get(), ask, _wait_seconds(request))
        return pb.GenerateResponse(errand=errand(view))

    async def PlanJob(self, request: pb.PlanJobRequest, context: Any) -> pb.PlanJobResponse:
        """Check a spec and estimate its run."""
        document = convert.document(request.spec)
        found = await plan(self._context, CALLER.get(), document, _wait_seconds(request))
        return json_format.ParseDict(found.model_dump(mode="json", exclude_none=True), pb.PlanJobResponse())

    async def GetErrand(self, request: pb.GetErrandRequest, context: Any) -> pb.GetErrandResponse:
        """Wait for an answer that did not come in time."""
        view = await waited(self._context, CALLER.get(), request.errand_id, _wait_seconds(request))
        return pb.GetErrandResponse(errand=errand(view))


def errand(view: ErrandView) -> pb.Errand:
    """An errand for the wire."""
    return json_format.ParseDict(view.model_dump(mode="json", exclude_none=True), pb.Errand())


_Request = pb.PreviewRewardRequest | pb.GenerateRequest | pb.PlanJobRequest | pb.GetErrandRequest


def _wait_seconds(request: _Request) -> float:
    if not request.HasField("timeout_seconds"):
        return DEFAULT_WAIT_SECONDS
    if not 0 <= request.timeout_seconds <= MAX_WAIT_SECONDS:
        detail = f"must be from 0 to {MAX_WAIT_SECONDS:g}"
        problem = Problem(pointer="/timeout_seconds", code="out_of_range", detail=detail)
        raise InvalidArgument(f"timeout_seconds {detail}", problems=[problem])
    return request.timeout_seconds
