"""Submit, look up and list jobs."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.responses import Response as Answer

from api import errors as door
from api.http.body import json_object
from api.http.deps import Caller, Ctx, JobId
from api.http.errors import responses
from api.http.queries import NO_QUERY, ListQuery
from api.idempotency import from_header
from api.parameters import MAX_PAGE_SIZE
from jobs import errors as domain
from jobs import service
from jobs.spec import parse_spec
from jobs.states import JobState
from jobs.views import JobView, Page

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

SPEC_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/JobSpec"}}},
    }
}
_REPLAYED = {"description": "The idempotency key was used before with this spec: that job.", "model": JobView}


@router.post(
    "",
    status_code=201,
    response_model=JobView,
    dependencies=[NO_QUERY],
    openapi_extra=SPEC_BODY,
    responses={
        200: _REPLAYED,
        **responses(
            door.MalformedBody,
            domain.InvalidArgument,
            domain.Unauthenticated,
            door.HostNotAllowed,
            door.BodyTimeout,
            door.BodyTooLarge,
            door.UnsupportedMediaType,
            domain.InvalidSpec,
            domain.IdempotencyConflict,
            domain.QuotaExceeded,
        ),
    },
)
def submit(
    context: Ctx,
    caller: Caller,
    document: Annotated[dict[str, Any], Depends(json_object)],
    idempotency_key: Annotated[
        str | None, Header(description="Makes the request repeatable; a UUID is advised.")
    ] = None,
) -> Answer:
    """Submit a job.

    The spec is checked wholly before anything is stored, and every problem is reported at once. With an
    `Idempotency-Key` the request may be repeated: the same key with the same spec answers 200 with the job that the
    first one made and `Idempotency-Replayed: true`; with another spec it is refused with 422.
    """
    request_id = from_header(idempotency_key)
    spec = parse_spec(document)
    settings = context.settings
    where: dict[str, Any] = {"roots": settings.model_roots, "reach": settings.reach}
    limits = settings.limits
    job, created = service.submit(context.db, caller, spec, request_id=request_id, limits=limits, **where)
    headers = {"Location": f"/v1/jobs/{job.id}", "ETag": _quoted(job.etag)}
    if not created:
        headers["Idempotency-Replayed"] = "true"
    return _shown(job, headers, status_code=201 if created else 200)


@router.get("", responses=responses(domain.InvalidArgument, domain.Unauthenticated, door.HostNotAllowed))
def list_jobs(context: Ctx, caller: Caller, query: Annotated[ListQuery, Query()]) -> Page[JobView]:
    """List your jobs, newest first, a page at a time."""
    return service.list_jobs(
        context.db,
        caller,
        states=query.state,
        labels=query.labels(),
        page_size=min(query.page_size, MAX_PAGE_SIZE),
        page_token=query.page_token,
    )


@router.get(
    "/{job_id}",
    dependencies=[NO_QUERY],
    response_model=JobView,
    responses={
        304: {"description": "The job is as `If-None-Match` knows it."},
        **responses(domain.Unauthenticated, door.HostNotAllowed, domain.JobNotFound),
    },
)
def get_job(
    context: Ctx,
    caller: Caller,
    job_id: JobId,
    request: Request,
) -> Answer:
    """Get a job. `Retry-After` is a good time for the next look; send the `ETag` back as `If-None-Match`."""
    job = service.get(context.db, caller, job_id)
    headers = {"ETag": _quoted(job.etag), "Cache-Control": "private, no-cache"}
    if not job.done:
        headers["Retry-After"] = str(_next_look_seconds(job))
    if _matches(request.headers.get("if-none-match", ""), job.etag):
        return Answer(status_code=304, headers=headers)
    return _shown(job, headers)


def _shown(job: JobView, headers: dict[str, str], status_code: int = 200) -> Answer:
    """The two busiest answers, serialised here: FastAPI would check the view again first, in one more thread."""
    return Answer(job.model_dump_json(by_alias=True), status_code, headers, media_type="application/json")


def _quoted(etag: str) -> str:
    return f'"{etag}"'


def _matches(if_none_match: str, etag: str) -> bool:
    """RFC 9110 section 13.1.2: weak comparison with any of a list, or `*`."""
    tags = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return "*" in tags or _quoted(etag) in tags


def _next_look_seconds(job: JobView) -> int:
    """A twentieth of what is left, 1 to 30 s; 2 s where nobody knows."""
    eta = job.progress.eta_seconds if job.state is JobState.RUNNING else None
    return 2 if eta is None else max(1, min(30, round(eta / 20)))
