"""What a job tells: events, metrics, samples, logs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response

from api import errors as door
from api.context import Context
from api.http import csv_table, sse
from api.http.deps import Caller, Ctx, JobId
from api.http.errors import Responses, responses
from api.http.event_stream import EventStream
from api.http.queries import EventsQuery, LogsQuery, MetricsFormat, MetricsQuery, SamplesQuery
from api.threads import in_thread
from api.watch import Source, watch
from jobs import errors as domain
from jobs import service
from jobs.auth import Principal
from jobs.views import JobEventView, LogsView, MetricsView, Page, SampleView

router = APIRouter(prefix="/v1/jobs/{job_id}", tags=["progress"])

REFUSALS = responses(domain.InvalidArgument, domain.Unauthenticated, door.HostNotAllowed, domain.JobNotFound)
_EVENTS: Responses = {
    200: {
        "description": "A page of events; or, with `Accept: text/event-stream`, the job's stream.",
        "model": Page[JobEventView],
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    },
    204: {"description": "The stream was seen to its end: nothing is left to reconnect for."},
}

_METRICS: Responses = {200: {"model": MetricsView, "content": {"text/csv": {"schema": {"type": "string"}}}}}


@router.get("/events", response_model=None, responses={**_EVENTS, **REFUSALS})
async def events(
    context: Ctx,
    caller: Caller,
    job_id: JobId,
    request: Request,
    query: Annotated[EventsQuery, Query()],
    last_event_id: Annotated[str | None, Header(description="Where a stream broke: its last `id`.")] = None,
) -> Page[JobEventView] | Response:
    """List what happened to a job, or follow it live.

    With `Accept: text/event-stream` the answer is a stream: `job` (the job now), then `event` (an entry of this list)
    and `step` (`{step, time, metrics}`) as they come, then `end` (the job as it ended). Step 0 is the evaluation before
    training. `gap` (`{from_step, to_step}`) says that you were very far behind and only some of these steps follow; all
    are in `/metrics`. After an event `rolled_back` the steps behind its `data.to_step` are void, and come again. A
    stream that closes without `end` was cut; ask again with the last id in `Last-Event-ID`, as browsers do by
    themselves. The stream of a finished job is its replay.
    """
    if "text/event-stream" in request.headers.get("accept", ""):
        request.state.streamed = True
        return await _stream(context, caller, job_id, query, last_event_id)
    return await in_thread(
        service.events_page,
        context.db,
        caller,
        job_id,
        after_seq=query.after_seq,
        limit=query.limit,
        token=query.page_token,
    )


async def _stream(
    context: Context, caller: Principal, job_id: str, query: EventsQuery, last_event_id: str | None
) -> Response:
    cursor, ended = sse.place_of(last_event_id or str(query.after_seq))
    source = Source(context.db, caller, job_id, context.stopping)
    updates = watch(source, cursor, context.pace, context.hub)
    # Before the response starts, so that an unknown job is a 404 and not an empty stream.
    first = await anext(updates)
    if ended:
        await updates.aclose()
        return Response(status_code=204)
    return EventStream(sse.text(first, updates, context.meters.streams.labels("http")))


@router.get("/metrics", response_model=MetricsView, responses={**_METRICS, **REFUSALS})
def metrics(
    context: Ctx, caller: Caller, job_id: JobId, query: Annotated[MetricsQuery, Query()]
) -> MetricsView | Response:
    """Get a job's metrics by step, as columns (JSON) or rows (CSV)."""
    found = service.metrics(
        context.db,
        caller,
        job_id,
        keys=query.names(),
        from_step=query.from_step,
        max_points=query.max_points,
    )
    if query.format is MetricsFormat.CSV:
        return Response("".join(csv_table.rows(found)), media_type="text/csv")
    return found


@router.get("/samples", responses=REFUSALS)
def samples(context: Ctx, caller: Caller, job_id: JobId, query: Annotated[SamplesQuery, Query()]) -> Page[SampleView]:
    """Read stored responses of a step with their prompts and scores, a page at a time."""
    return service.samples(
        context.db,
        caller,
        job_id,
        step=query.step,
        evaluation=query.evaluation,
        sort=query.sort,
        limit=query.limit,
        token=query.page_token,
    )


@router.get("/logs", responses=REFUSALS)
def logs(context: Ctx, caller: Caller, job_id: JobId, query: Annotated[LogsQuery, Query()]) -> LogsView:
    """Read the end of an attempt's log."""
    runs_dir = context.settings.runs_dir
    return service.logs(context.db, caller, job_id, runs_dir, tail=query.tail, attempt=query.attempt)
