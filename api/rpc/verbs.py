"""The calls on a job that exists: verbs, waiting, changes, attempts, health."""

# ruff: noqa: N802, ARG002 (names and parameters are those of the generated base class)

from __future__ import annotations

from functools import partial
from typing import Any

from google.protobuf import json_format

from api.context import Context
from api.idempotency import checked
from api.parameters import MAX_PAGE_SIZE, bounded, job_id
from api.rpc import convert
from api.rpc.gate import CALLER
from api.rpc.v1 import job_service_pb2 as pb
from api.rpc.v1.job_service_pb2_grpc import JobServiceServicer
from api.threads import in_thread
from api.wait import DEFAULT_SECONDS, MAX_SECONDS, wait
from api.watch import Source
from jobs import forking, service
from jobs.errors import InvalidArgument, Problem
from jobs.updating import JobPatch, parse_patch


class VerbRpcs(JobServiceServicer):
    """The part of JobService that asks something of a job that exists."""

    _context: Context

    async def CancelJob(self, request: pb.CancelJobRequest, context: Any) -> pb.CancelJobResponse:
        """Cancel a job."""
        job = await in_thread(service.cancel, self._context.db, CALLER.get(), job_id(request.job_id))
        return pb.CancelJobResponse(job=convert.job(job))

    async def PauseJob(self, request: pb.PauseJobRequest, context: Any) -> pb.PauseJobResponse:
        """Hold a job."""
        job = await in_thread(service.pause, self._context.db, CALLER.get(), job_id(request.job_id))
        return pb.PauseJobResponse(job=convert.job(job))

    async def ResumeJob(self, request: pb.ResumeJobRequest, context: Any) -> pb.ResumeJobResponse:
        """Resume a paused job."""
        job = await in_thread(service.resume, self._context.db, CALLER.get(), job_id(request.job_id))
        return pb.ResumeJobResponse(job=convert.job(job))

    async def StopJob(self, request: pb.StopJobRequest, context: Any) -> pb.StopJobResponse:
        """End a running job well."""
        job = await in_thread(service.stop, self._context.db, CALLER.get(), job_id(request.job_id))
        return pb.StopJobResponse(job=convert.job(job))

    async def RetryJob(self, request: pb.RetryJobRequest, context: Any) -> pb.RetryJobResponse:
        """Submit a job's spec again."""
        whose = self._context.db, CALLER.get(), job_id(request.job_id)
        job, created = await in_thread(forking.retry, *whose, **self._creation(request.request_id))
        return pb.RetryJobResponse(job=convert.job(job), created=created)

    async def ForkJob(self, request: pb.ForkJobRequest, context: Any) -> pb.ForkJobResponse:
        """Go on from a job's checkpoint in a new job."""
        whose, how = (self._context.db, CALLER.get(), job_id(request.job_id)), self._creation(request.request_id)
        wanted: dict[str, Any] = {"overrides": json_format.MessageToDict(request.overrides)}
        if request.from_step:
            wanted["from_step"] = int(request.from_step) if request.from_step.isdecimal() else request.from_step
        if request.HasField("name"):
            wanted["name"] = request.name

        def fork() -> tuple[Any, bool]:
            return forking.fork(*whose, forking.parse_fork(wanted), **how)

        job, created = await in_thread(fork)
        return pb.ForkJobResponse(job=convert.job(job), created=created)

    def _creation(self, request_id: str) -> dict[str, Any]:
        """What every call that makes a job needs."""
        settings = self._context.settings
        key = checked(request_id) if request_id else None
        return {
            "roots": settings.model_roots,
            "reach": settings.reach,
            "limits": settings.limits,
            "request_id": key,
        }

    async def WaitJob(self, request: pb.WaitJobRequest, context: Any) -> pb.WaitJobResponse:
        """Wait for a job's end."""
        seconds = request.timeout_seconds if request.HasField("timeout_seconds") else DEFAULT_SECONDS
        if not 0 <= seconds <= MAX_SECONDS:
            detail = f"must be from 0 to {MAX_SECONDS:g}"
            problem = Problem(pointer="/timeout_seconds", code="out_of_range", detail=detail)
            raise InvalidArgument(f"timeout_seconds {detail}", problems=[problem])
        source = Source(self._context.db, CALLER.get(), job_id(request.job_id), self._context.stopping)
        return pb.WaitJobResponse(job=convert.job(await wait(source, seconds, self._context.pace, self._context.hub)))

    async def UpdateJob(self, request: pb.UpdateJobRequest, context: Any) -> pb.UpdateJobResponse:
        """Change a job's name and labels."""
        paths, etags = _paths(request), frozenset({request.etag}) if request.etag else None
        patch, whole = _patch(request, paths), "labels" in paths
        whose = self._context.db, CALLER.get(), job_id(request.job_id)
        job = await in_thread(service.update, *whose, patch, etags=etags, replace_labels=whole)
        return pb.UpdateJobResponse(job=convert.job(job))

    async def ListAttempts(self, request: pb.ListAttemptsRequest, context: Any) -> pb.ListAttemptsResponse:
        """List one page of attempts."""
        size = bounded("page_size", request.page_size, default=50, least=1, most=MAX_PAGE_SIZE)
        whose = self._context.db, CALLER.get(), job_id(request.job_id)
        page = await in_thread(service.attempts, *whose, page_size=size, page_token=request.page_token or None)
        attempts = map(convert.attempt, page.items)
        return pb.ListAttemptsResponse(attempts=attempts, next_page_token=page.next_page_token or "")

    async def GetHealth(self, request: pb.GetHealthRequest, context: Any) -> pb.GetHealthResponse:
        """Judge a run."""
        return convert.health(await in_thread(service.health, self._context.db, CALLER.get(), job_id(request.job_id)))


def _paths(request: pb.UpdateJobRequest) -> list[str]:
    """What to change: the mask, or without one every field that is there.

    Raises:
        InvalidArgument: a path that is none.
    """
    paths = list(request.update_mask.paths)
    wrong = [path for path in paths if path not in ("name", "labels") and not path.startswith("labels.")]
    if wrong:
        allowed = ["name", "labels", "labels.KEY"]
        no_path = partial(Problem, pointer="/update_mask", code="unknown_field", detail="no such path", allowed=allowed)
        problems = [no_path(given=path[:80]) for path in wrong]
        raise InvalidArgument("update_mask must hold some of `name`, `labels` and `labels.KEY`", problems=problems)
    given = [name for name, there in (("name", request.HasField("name")), ("labels", bool(request.labels))) if there]
    return paths or given


def _patch(request: pb.UpdateJobRequest, paths: list[str]) -> JobPatch:
    """The named fields as the merge patch that means the same; raises InvalidArgument for values that cannot be."""
    document: dict[str, Any] = {}
    if "name" in paths:
        document["name"] = request.name if request.HasField("name") else None
    keys = [path.removeprefix("labels.") for path in paths if path not in ("name", "labels")]
    if "labels" in paths:
        document["labels"] = dict(request.labels)
    elif keys:
        document["labels"] = {key: request.labels.get(key) for key in keys}
    return parse_patch(document)
