"""Errands: engine work while the caller waits."""

# ruff: noqa: N802, ARG002 (names and parameters are those of the generated base class)

from __future__ import annotations

from enum import StrEnum
from functools import partial
from typing import Any, TypeVar

from google.protobuf import json_format

from api.context import Context
from api.errands import DEFAULT_WAIT_SECONDS, MAX_WAIT_SECONDS, asked, waited
from api.parameters import MAX_PAGE_SIZE, bounded, job_id
from api.plans import plan
from api.rpc import convert
from api.rpc.gate import CALLER
from api.rpc.v1 import job_service_pb2 as pb
from api.rpc.v1.job_service_pb2_grpc import JobServiceServicer
from api.threads import in_thread
from jobs import errand_control
from jobs.errand_views import ErrandState, ErrandView
from jobs.errors import InvalidArgument, Problem
from jobs.generating import ask_generation
from jobs.previews import ask_preview
from jobs.verifying import ask_verification
from ppo_engine.errands import ErrandKind


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

    async def VerifyResume(self, request: pb.VerifyResumeRequest, context: Any) -> pb.VerifyResumeResponse:
        """Replay steps of a job from a checkpoint."""
        job, body = job_id(request.job_id), convert.document(request.request)
        ask = partial(ask_verification, self._context.db, CALLER.get(), job, body)
        view = await asked(self._context, CALLER.get(), ask, _wait_seconds(request))
        return pb.VerifyResumeResponse(errand=errand(view))

    async def PlanJob(self, request: pb.PlanJobRequest, context: Any) -> pb.PlanJobResponse:
        """Check a spec and estimate its run."""
        document = convert.document(request.spec)
        found = await plan(self._context, CALLER.get(), document, _wait_seconds(request))
        return json_format.ParseDict(found.model_dump(mode="json", exclude_none=True), pb.PlanJobResponse())

    async def GetErrand(self, request: pb.GetErrandRequest, context: Any) -> pb.GetErrandResponse:
        """Wait for an answer that did not come in time."""
        view = await waited(self._context, CALLER.get(), request.errand_id, _wait_seconds(request))
        return pb.GetErrandResponse(errand=errand(view))

    async def ListErrands(self, request: pb.ListErrandsRequest, context: Any) -> pb.ListErrandsResponse:
        """List one page of errands."""
        page = await in_thread(
            errand_control.list_errands,
            self._context.db,
            CALLER.get(),
            kind=_choice(ErrandKind, "kind", request.kind),
            state=_choice(ErrandState, "state", request.state),
            job_id=job_id(request.job_id) if request.job_id else None,
            page_size=bounded("page_size", request.page_size, default=50, least=1, most=MAX_PAGE_SIZE),
            token=request.page_token or None,
        )
        return pb.ListErrandsResponse(errands=map(errand, page.items), next_page_token=page.next_page_token or "")

    async def CancelErrand(self, request: pb.CancelErrandRequest, context: Any) -> pb.CancelErrandResponse:
        """Cancel an errand."""
        view = await in_thread(errand_control.cancel_errand, self._context.db, CALLER.get(), request.errand_id)
        return pb.CancelErrandResponse(errand=errand(view))


def errand(view: ErrandView) -> pb.Errand:
    """An errand for the wire."""
    return json_format.ParseDict(view.model_dump(mode="json", exclude_none=True), pb.Errand())


C = TypeVar("C", bound=StrEnum)


def _choice(kind: type[C], name: str, given: str) -> C | None:
    try:
        return kind(given) if given else None
    except ValueError:
        allowed = [value.value for value in kind]
        detail = f"must be one of {', '.join(allowed)}"
        problem = Problem(pointer=f"/{name}", code="unknown_value", detail=detail, given=given[:80], allowed=allowed)
        raise InvalidArgument(f"{name} {detail}", problems=[problem]) from None


_Request = (
    pb.PreviewRewardRequest | pb.GenerateRequest | pb.VerifyResumeRequest | pb.PlanJobRequest | pb.GetErrandRequest
)


def _wait_seconds(request: _Request) -> float:
    if not request.HasField("timeout_seconds"):
        return DEFAULT_WAIT_SECONDS
    if not 0 <= request.timeout_seconds <= MAX_WAIT_SECONDS:
        detail = f"must be from 0 to {MAX_WAIT_SECONDS:g}"
        problem = Problem(pointer="/timeout_seconds", code="out_of_range", detail=detail)
        raise InvalidArgument(f"timeout_seconds {detail}", problems=[problem])
    return request.timeout_seconds
