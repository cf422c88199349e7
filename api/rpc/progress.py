"""What a job tells and leaves behind: events, samples, logs, checkpoints."""

# ruff: noqa: N802, ARG002 (names and parameters are those of the generated base class)

from __future__ import annotations

from typing import Any

from api.context import Context
from api.parameters import MAX_PAGE_SIZE, bounded, job_id
from api.rpc import convert
from api.rpc.gate import CALLER
from api.rpc.v1 import job_service_pb2 as pb
from api.rpc.v1.job_service_pb2_grpc import JobServiceServicer
from api.threads import in_thread
from jobs import service
from jobs.errors import InvalidArgument
from jobs.views import SampleSort


class ProgressRpcs(JobServiceServicer):
    """The part of JobService that reads what runs have recorded."""

    _context: Context

    async def ListEvents(self, request: pb.ListEventsRequest, context: Any) -> pb.ListEventsResponse:
        """List one page of events."""
        page = await in_thread(
            service.events_page,
            self._context.db,
            CALLER.get(),
            job_id(request.job_id),
            after_seq=request.after_seq,
            limit=bounded("limit", request.limit, default=1000, least=1, most=1000),
            token=request.page_token or None,
        )
        token = page.next_page_token or ""
        return pb.ListEventsResponse(events=map(convert.event, page.items), next_page_token=token)

    async def ListSamples(self, request: pb.ListSamplesRequest, context: Any) -> pb.ListSamplesResponse:
        """List one page of the stored responses of a step."""
        page = await in_thread(
            service.samples,
            self._context.db,
            CALLER.get(),
            job_id(request.job_id),
            step=request.step if request.HasField("step") else None,
            evaluation=request.evaluation if request.HasField("evaluation") else None,
            sort=_sort(request.sort),
            limit=bounded("limit", request.limit, default=100, least=1, most=1000),
            token=request.page_token or None,
        )
        found = [pb.Sample(**view.model_dump()) for view in page.items]
        return pb.ListSamplesResponse(samples=found, next_page_token=page.next_page_token or "")

    async def ListLogs(self, request: pb.ListLogsRequest, context: Any) -> pb.ListLogsResponse:
        """Read the end of a log."""
        found = await in_thread(
            service.logs,
            self._context.db,
            CALLER.get(),
            job_id(request.job_id),
            self._context.settings.runs_dir,
            tail=bounded("tail", request.tail, default=200, least=1, most=10_000),
            attempt=request.attempt or None,
        )
        return pb.ListLogsResponse(**found.model_dump())

    async def ListCheckpoints(self, request: pb.ListCheckpointsRequest, context: Any) -> pb.ListCheckpointsResponse:
        """List one page of checkpoints."""
        size = bounded("page_size", request.page_size, default=50, least=1, most=MAX_PAGE_SIZE)
        page = await in_thread(
            service.checkpoints,
            self._context.db,
            CALLER.get(),
            job_id(request.job_id),
            page_size=size,
            token=request.page_token or None,
        )
        token = page.next_page_token or ""
        return pb.ListCheckpointsResponse(checkpoints=map(convert.checkpoint, page.items), next_page_token=token)


def _sort(given: str) -> SampleSort:
    try:
        return SampleSort(given or SampleSort.INDEX)
    except ValueError:
        raise InvalidArgument(f"sort must be one of {', '.join(SampleSort)}") from None
