"""What an owner asks of a job that exists: verbs, waiting, changes, and how it has been going."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from pydantic import Field

from api import errors as door
from api.http.body import merge_patch
from api.http.deps import Caller, Ctx, JobId
from api.http.errors import responses
from api.http.queries import NO_QUERY
from api.http.queries import Query as Parameters
from api.parameters import MAX_PAGE_SIZE
from api.wait import DEFAULT_SECONDS, MAX_SECONDS, wait
from api.watch import Source
from jobs import errors as domain
from jobs import service
from jobs.updating import JobPatch, parse_patch
from jobs.views import AttemptView, HealthView, JobView, Page

router = APIRouter(prefix="/v1/jobs/{job_id}", tags=["jobs"])

_REFUSALS = (domain.InvalidArgument, domain.Unauthenticated, door.HostNotAllowed, domain.JobNotFound)
_VERB = responses(*_REFUSALS, domain.IllegalTransition)
_CHANGE = responses(
    door.MalformedBody,
    *_REFUSALS,
    door.BodyTimeout,
    domain.EtagMismatch,
    door.BodyTooLarge,
    door.UnsupportedMediaType,
)
_PATCH_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            kind: {"schema": {"$ref": "#/components/schemas/JobPatch"}}
            for kind in ("application/merge-patch+json", "application/json")
        },
    }
}


class WaitQuery(Parameters):
    """How long."""

    timeout: float = Field(DEFAULT_SECONDS, ge=0, le=MAX_SECONDS, description="Longest wait, seconds.")


class AttemptsQuery(Parameters):
    """Which attempts."""

    page_size: int = Field(50, ge=1, description=f"Attempts per page; more than {MAX_PAGE_SIZE} counts as that.")
    page_token: str | None = Field(None, description="`next_page_token` of the page before.")


@router.post("/cancel", dependencies=[NO_QUERY], responses=_VERB)
def cancel(context: Ctx, caller: Caller, job_id: JobId, response: Response) -> JobView:
    """Cancel a job: a waiting one at once, a running one after its step. Repeating it is harmless."""
    return _tagged(response, service.cancel(context.db, caller, job_id))


@router.post("/pause", dependencies=[NO_QUERY], responses=_VERB)
def pause(context: Ctx, caller: Caller, job_id: JobId, response: Response) -> JobView:
    """Hold a job: a queued one at once, a running one after its step, with a checkpoint. Repeating it is harmless.

    A paused job holds no worker. A cancel or a stop that comes while the step ends outranks the pause.
    """
    return _tagged(response, service.pause(context.db, caller, job_id))


@router.post("/resume", dependencies=[NO_QUERY], responses=_VERB)
def resume(context: Ctx, caller: Caller, job_id: JobId, response: Response) -> JobView:
    """Resume a paused job: it goes on from its last checkpoint. Repeating it is harmless.

    Where a pause has been asked for and the job still runs, the wish is taken back.
    """
    return _tagged(response, service.resume(context.db, caller, job_id))


@router.post("/stop", dependencies=[NO_QUERY], responses=_VERB)
def stop(context: Ctx, caller: Caller, job_id: JobId, response: Response) -> JobView:
    """End a running job early and well: `succeeded`, with `stop_reason` `user_stop` and a checkpoint of its last step.

    It ends after the step in progress, and never before its first. A job that only waits cannot be stopped: cancel it,
    its checkpoints stay. Repeating it is harmless.
    """
    return _tagged(response, service.stop(context.db, caller, job_id))


@router.get("/wait", responses=responses(*_REFUSALS))
async def wait_for_end(
    context: Ctx,
    caller: Caller,
    job_id: JobId,
    request: Request,
    response: Response,
    query: Annotated[WaitQuery, Query()],
) -> JobView:
    """Wait for a job's end: the job when it is `done`, or as it is after `timeout` seconds."""
    request.state.streamed = True  # its time says nothing about the service
    source = Source(context.db, caller, job_id, context.stopping)
    return _tagged(response, await wait(source, query.timeout, context.pace, context.hub))


@router.patch("", dependencies=[NO_QUERY], openapi_extra=_PATCH_BODY, responses=_CHANGE)
def update_job(
    context: Ctx,
    caller: Caller,
    job_id: JobId,
    response: Response,
    document: Annotated[dict[str, Any], Depends(merge_patch)],
    if_match: Annotated[str | None, Header(description="Change the job only if this is its ETag.")] = None,
) -> JobView:
    """Change a job's name and labels, in any state, by a JSON merge patch (RFC 7396).

    The spec stays as it was submitted. An ETag stands for the whole job: that of a running one changes with each step.
    """
    patch: JobPatch = parse_patch(document)
    return _tagged(response, service.update(context.db, caller, job_id, patch, etags=_etags(if_match)))


@router.get("/attempts", responses=responses(*_REFUSALS))
def attempts(
    context: Ctx, caller: Caller, job_id: JobId, query: Annotated[AttemptsQuery, Query()]
) -> Page[AttemptView]:
    """List who held the job, from when to when, how far each attempt came and why it ended; newest first."""
    size = min(query.page_size, MAX_PAGE_SIZE)
    return service.attempts(context.db, caller, job_id, page_size=size, page_token=query.page_token)


@router.get("/health", dependencies=[NO_QUERY], responses=responses(*_REFUSALS))
def health(context: Ctx, caller: Caller, job_id: JobId) -> HealthView:
    """Judge a run by its newest numbers: each finding with its metric, value, rule, advice and the rule's source."""
    return service.health(context.db, caller, job_id)


def _tagged(response: Response, job: JobView) -> JobView:
    response.headers["ETag"] = f'"{job.etag}"'
    return job


def _etags(if_match: str | None) -> frozenset[str] | None:
    """RFC 9110 section 13.1.1: any of a list by strong comparison; None where every job will do."""
    if if_match is None or if_match.strip() == "*":
        return None
    return frozenset(tag.strip().removeprefix('"').removesuffix('"') for tag in if_match.split(","))
