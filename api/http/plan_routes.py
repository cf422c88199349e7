"""Plan a job before it costs anything."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends

from api import errors as door
from api.http.body import json_object
from api.http.deps import Caller, Ctx
from api.http.errand_routes import Wait
from api.http.errors import responses
from api.http.job_routes import SPEC_BODY
from api.plans import plan
from jobs import errors as domain
from jobs.plan_views import PlanView

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


@router.post(
    "/plan",
    openapi_extra=SPEC_BODY,
    responses=responses(
        door.MalformedBody,
        domain.InvalidArgument,
        domain.Unauthenticated,
        door.HostNotAllowed,
        door.BodyTimeout,
        door.BodyTooLarge,
        door.UnsupportedMediaType,
    ),
)
async def plan_job(
    context: Ctx, caller: Caller, document: Annotated[dict[str, Any], Depends(json_object)], query: Wait
) -> PlanView:
    """Check a spec and estimate its run, without creating anything.

    All that a submit checks, and more: a worker of the spec's queue reads the model's config, tokenizer and weight
    headers, counts and tokenises the prompts, and tries the rewards on a few of them. The answer has every error (with
    the code that the refusal or the failed job would have), warnings with advice, memory and disk against what is
    there, the amount of work, and the time of earlier runs of this model scaled to it. It is 200 whatever it says:
    read `ok`. Where no worker has looked within `timeout`, `not_probed` says why and the rest is there.
    """
    return await plan(context, caller, document, query.timeout)
