"""Engine work while the caller waits: previews of rewards, answers of a job's policy, and steps made again."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from fastapi.responses import Response as Answer
from pydantic import Field

from api import errors as door
from api.errands import DEFAULT_WAIT_SECONDS, MAX_WAIT_SECONDS, asked, waited
from api.http.body import json_object
from api.http.deps import Caller, Ctx, JobId
from api.http.errors import Responses, responses
from api.http.queries import NO_QUERY, PageQuery
from api.http.queries import Query as Parameters
from api.parameters import job_id as checked_id
from jobs import errand_control
from jobs import errors as domain
from jobs.errand_views import ErrandState, ErrandView
from jobs.generating import ask_generation
from jobs.previews import ask_preview
from jobs.verifying import ask_verification
from jobs.views import Page
from ppo_engine.errands import ErrandKind

router = APIRouter(prefix="/v1", tags=["errands"])

_ASKED = (
    door.MalformedBody,
    domain.InvalidArgument,
    domain.Unauthenticated,
    door.HostNotAllowed,
    door.BodyTimeout,
    door.BodyTooLarge,
    door.UnsupportedMediaType,
    domain.InvalidRequest,
    domain.QuotaExceeded,
    domain.NoWorker,
    domain.ErrandRefused,
    domain.ErrandFailed,
)
_LATER: Responses = {
    202: {"description": "Not done yet: `Location` is where the answer will be.", "model": ErrandView},
}


class WaitQuery(Parameters):
    """How long to wait."""

    timeout: float = Field(
        DEFAULT_WAIT_SECONDS, ge=0, le=MAX_WAIT_SECONDS, description="Longest wait for the answer, seconds."
    )


class ErrandsQuery(PageQuery):
    """Which errands, and which page of them."""

    kind: ErrandKind | None = Field(None, description="Only this kind.")
    state: ErrandState | None = Field(None, description="Only those in this state.")
    job_id: str | None = Field(None, description="Only those about this job.")


Wait = Annotated[WaitQuery, Query()]
Body = Annotated[dict[str, Any], Depends(json_object)]


def _body(model: str) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{model}"}}}
    return {"requestBody": {"required": True, "content": content}}


@router.post(
    "/rewards/preview",
    response_model=ErrandView,
    openapi_extra=_body("PreviewRequest"),
    responses={**_LATER, **responses(*_ASKED)},
)
async def preview_reward(context: Ctx, caller: Caller, document: Body, query: Wait) -> Answer:
    """Score up to 256 texts with the rewards of a spec, before any training.

    Every component is built and asked as a run would ask it, twice. The answer has each text's values; how they lie
    (quantiles, histogram, the share at either end); the share of prompts whose responses all got the same value; the
    correlation with the length; how far the second scoring differs; and findings in words.
    """
    settings = context.settings
    ask = partial(ask_preview, context.db, caller, document, roots=settings.model_roots, reach=settings.reach)
    return _shown(await asked(context, caller, ask, query.timeout))


@router.post(
    "/jobs/{job_id}/generate",
    response_model=ErrandView,
    openapi_extra=_body("GenerationRequest"),
    responses={**_LATER, **responses(*_ASKED, domain.JobNotFound)},
)
async def generate(context: Ctx, caller: Caller, job_id: JobId, document: Body, query: Wait) -> Answer:
    """Answer prompts with a job's policy, as a checkpoint has it or as it was before training.

    With `compare_to` several answer the same prompts, drawn with the same random numbers. The job's chat template,
    system message and sampling are used unless the request says otherwise; with `score` its rewards too.
    """
    ask = partial(ask_generation, context.db, caller, job_id, document)
    return _shown(await asked(context, caller, ask, query.timeout))


@router.post(
    "/jobs/{job_id}/verify-resume",
    response_model=ErrandView,
    openapi_extra=_body("VerificationRequest"),
    responses={**_LATER, **responses(*_ASKED, domain.JobNotFound)},
)
async def verify_resume(context: Ctx, caller: Caller, job_id: JobId, document: Body, query: Wait) -> Answer:
    """Replay steps of a job from one of its checkpoints, and compare them with what it recorded.

    Metrics and samples of every step, and the weights of a later checkpoint that is still kept, tensor by tensor. The
    job itself is left alone: its rows, files, webhooks and W&B run. Rewards are asked again.
    """
    ask = partial(ask_verification, context.db, caller, job_id, document)
    return _shown(await asked(context, caller, ask, query.timeout))


@router.get(
    "/errands/{errand_id}",
    response_model=ErrandView,
    responses={
        **_LATER,
        **responses(domain.InvalidArgument, domain.Unauthenticated, door.HostNotAllowed, domain.JobNotFound),
    },
)
async def get_errand(context: Ctx, caller: Caller, errand_id: str, query: Wait) -> Answer:
    """Wait for an answer that did not come in time. It is kept for an hour; a failed errand says why in `error`."""
    return _shown(await waited(context, caller, errand_id, query.timeout))


@router.get(
    "/errands",
    responses=responses(domain.InvalidArgument, domain.Unauthenticated, door.HostNotAllowed, domain.JobNotFound),
)
def list_errands(context: Ctx, caller: Caller, query: Annotated[ErrandsQuery, Query()]) -> Page[ErrandView]:
    """List your errands, newest first, a page at a time: those that have not ended, and those of the last hour.

    Answers are left out; `GET /v1/errands/{id}` has them.
    """
    return errand_control.list_errands(
        context.db,
        caller,
        kind=query.kind,
        state=query.state,
        job_id=None if query.job_id is None else checked_id(query.job_id),
        page_size=query.page_size,
        token=query.page_token,
    )


@router.post(
    "/errands/{errand_id}/cancel",
    dependencies=[NO_QUERY],
    responses=responses(
        domain.InvalidArgument,
        domain.Unauthenticated,
        door.HostNotAllowed,
        domain.JobNotFound,
        domain.IllegalTransition,
    ),
)
def cancel_errand(context: Ctx, caller: Caller, errand_id: str) -> ErrandView:
    """Cancel an errand: one that waits at once, one that runs within a heartbeat of its worker, which ends its process.

    Repeating it is harmless. An answer that was there first stays.
    """
    return errand_control.cancel_errand(context.db, caller, errand_id)


def _shown(view: ErrandView) -> Answer:
    headers = {"Location": f"/v1/errands/{view.id}", "Cache-Control": "no-store"}
    if not view.done:
        headers["Retry-After"] = "1"
    status_code = 200 if view.done else 202
    return Answer(view.model_dump_json(by_alias=True), status_code, headers, media_type="application/json")
