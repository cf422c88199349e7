"""What an owner asks of a job that exists: verbs, waiting, changes, and how it has been going."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import Response as Answer
from pydantic import Field

from api import errors as door
from api.http.body import json_object, merge_patch
from api.http.deps import Caller, Ctx, JobId
from api.http.errors import Responses, responses
from api.http.queries import NO_QUERY
from api.http.queries import Query as Parameters
from api.idempotency import from_header
from api.parameters import MAX_PAGE_SIZE
from api.wait import DEFAULT_SECONDS, MAX_SECONDS, wait
from api.watch import Source
from jobs import errors as domain
from jobs import forking, service
from jobs.updating import JobPatch, parse_patch
from jobs.views import AttemptView, HealthView, JobView, Page

router = APIRouter(prefix="/v1/jobs/{job_id}", tags=["jobs"])

_REFUSALS = (domain.InvalidArgument, domain.Unauthenticated, door.HostNotAllowed, domain.JobNotFound)
_VERB = responses(*_REFUSALS, domain.IllegalTransition)
_BODY_REFUSALS = (door.MalformedBody, door.BodyTimeout, door.BodyTooLarge, door.UnsupportedMediaType)
_CHANGE = responses(*_REFUSALS, *_BODY_REFUSALS, domain.EtagMismatch)
_CREATION = (*_REFUSALS, domain.IllegalTransition, domain.InvalidSpec, domain.IdempotencyConflict, domain.QuotaExceeded)
_REPLAYED: Responses = {200: {"description": "It was made before: that job.", "model": JobView}}
_NEW_JOB: Responses = {**_REPLAYED, **responses(*_CREATION)}
_NEW_JOB_OF_BODY: Responses = {**_REPLAYED, **responses(*_CREATION, *_BODY_REFUSALS)}
Key = Annotated[str | None, Header(description="Makes the request repeatable; a UUID is advised.")]
_FORK_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ForkRequest"}}},
    }
}
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


@router.post("/retry", status_code=201, response_model=JobView, dependencies=[NO_QUERY], responses=_NEW_JOB)
def retry(context: Ctx, caller: Caller, job_id: JobId, idempotency_key: Key = None) -> Answer:
    """Submit the spec of a job that failed or was cancelled again: a new job, with the old one as its `parent`.

    Without an `Idempotency-Key` a job has one retry, and asking twice answers 200 with that one.
    """
    settings = context.settings
    how: dict[str, Any] = {
        "roots": settings.model_roots,
        "reach": settings.reach,
        "limits": settings.limits,
        "request_id": from_header(idempotency_key),
    }
    return _made(*forking.retry(context.db, caller, job_id, **how))


@router.post(
    "/fork",
    status_code=201,
    response_model=JobView,
    dependencies=[NO_QUERY],
    openapi_extra=_FORK_BODY,
    responses=_NEW_JOB_OF_BODY,
)
def fork(
    context: Ctx,
    caller: Caller,
    job_id: JobId,
    document: Annotated[dict[str, Any], Depends(json_object)],
    idempotency_key: Key = None,
) -> Answer:
    """Submit a job that goes on from a checkpoint of this one, in whatever state this one is.

    `overrides` is a JSON merge patch of the spec. The new job's `parent` says what is `carried` over: the whole
    training state, but for parts that a change makes void (with a new `seed` the random states, with new `prompts`
    the place in them, and so on); the new job then continues behind that step, towards its own `ppo.steps`. Where
    `model.value`, `model.reference` or the averages change, it has the weights alone and begins at step 0. What the
    weights are (`model.policy`, `adapter`, `lora`, `trainable_layers`) cannot change. The old job keeps the checkpoint
    until the new one has taken it over.
    """
    settings = context.settings
    request = forking.parse_fork(document)
    how: dict[str, Any] = {
        "roots": settings.model_roots,
        "reach": settings.reach,
        "limits": settings.limits,
        "request_id": from_header(idempotency_key),
    }
    return _made(*forking.fork(context.db, caller, job_id, request, **how))


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


def _made(job: JobView, created: bool) -> Answer:
    """As for a submit."""
    headers = {"Location": f"/v1/jobs/{job.id}", "ETag": f'"{job.etag}"'}
    if not created:
        headers["Idempotency-Replayed"] = "true"
    return Answer(job.model_dump_json(), 201 if created else 200, headers, media_type="application/json")


def _tagged(response: Response, job: JobView) -> JobView:
    response.headers["ETag"] = f'"{job.etag}"'
    return job


def _etags(if_match: str | None) -> frozenset[str] | None:
    """RFC 9110 section 13.1.1: any of a list by strong comparison; None where every job will do."""
    if if_match is None or if_match.strip() == "*":
        return None
    return frozenset(tag.strip().removeprefix('"').removesuffix('"') for tag in if_match.split(","))
