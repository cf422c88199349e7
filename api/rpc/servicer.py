"""JobService. One method per rpc: convert, ask the domain, convert back. Errors pass through to the gate."""

# ruff: noqa: N802, ARG002 (names and parameters are those of the generated base class)

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from api.context import Context
from api.idempotency import checked
from api.parameters import MAX_PAGE_SIZE, MAX_POINTS, MIN_POINTS, bounded, job_id, label_filters
from api.rpc import convert
from api.rpc.downloads import DownloadRpcs
from api.rpc.errands import ErrandRpcs
from api.rpc.gate import CALLER
from api.rpc.progress import ProgressRpcs
from api.rpc.v1 import job_service_pb2 as pb
from api.rpc.verbs import VerbRpcs
from api.threads import in_thread
from api.watch import Cursor, Source, watch
from jobs import service
from jobs.spec import parse_spec


class Servicer(ErrandRpcs, ProgressRpcs, VerbRpcs, DownloadRpcs):
    """JobService over one context."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._db = context.db

    async def CreateJob(self, request: pb.CreateJobRequest, context: Any) -> pb.CreateJobResponse:
        """Submit a job."""
        document = convert.spec_document(request.spec)
        settings = self._context.settings
        where: dict[str, Any] = {"roots": settings.model_roots, "reach": settings.reach}
        request_id = checked(request.request_id) if request.request_id else None

        def submit() -> tuple[Any, bool]:
            spec = parse_spec(document)
            limits = settings.limits
            return service.submit(self._db, CALLER.get(), spec, request_id=request_id, limits=limits, **where)

        job, created = await in_thread(submit)
        return pb.CreateJobResponse(job=convert.job(job), created=created)

    async def GetJob(self, request: pb.GetJobRequest, context: Any) -> pb.GetJobResponse:
        """Look a job up."""
        return pb.GetJobResponse(
            job=convert.job(await in_thread(service.get, self._db, CALLER.get(), job_id(request.job_id)))
        )

    async def ListJobs(self, request: pb.ListJobsRequest, context: Any) -> pb.ListJobsResponse:
        """List one page of jobs."""
        page = await in_thread(
            service.list_jobs,
            self._db,
            CALLER.get(),
            states=convert.states(request.states),
            labels=label_filters(request.labels),
            page_size=bounded("page_size", request.page_size, default=50, least=1, most=MAX_PAGE_SIZE),
            page_token=request.page_token or None,
        )
        return pb.ListJobsResponse(jobs=map(convert.job, page.items), next_page_token=page.next_page_token or "")

    async def WatchJob(self, request: pb.WatchJobRequest, context: Any) -> AsyncGenerator[pb.WatchJobResponse]:
        """Follow a job to its end."""
        after = request.after
        cursor = Cursor(after.seq, after.step if after.HasField("step") else None)
        source = Source(self._db, CALLER.get(), job_id(request.job_id), self._context.stopping)
        async with aclosing(watch(source, cursor, self._context.pace, self._context.hub)) as updates:
            async for update, place in updates:
                yield convert.update(update, place)

    async def QueryMetrics(self, request: pb.QueryMetricsRequest, context: Any) -> pb.QueryMetricsResponse:
        """Read metrics by step."""
        metrics = await in_thread(
            service.metrics,
            self._db,
            CALLER.get(),
            job_id(request.job_id),
            keys=list(request.keys),
            from_step=request.from_step,
            max_points=bounded("max_points", request.max_points, default=1000, least=MIN_POINTS, most=MAX_POINTS),
        )
        return convert.metrics(metrics)
