"""What this service can do: the spec's schema, rules, metrics, limits, and what its problems mean."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends

from api import catalogue
from api import errors as door
from api.catalogue import CapabilitiesView, ProblemKindView
from api.http.deps import Ctx, principal_of
from api.http.errors import responses
from api.http.queries import NO_QUERY
from jobs import errors as domain
from jobs.spec import json_schema

router = APIRouter(tags=["catalogue"], dependencies=[NO_QUERY])

_CALLER = [Depends(principal_of)]
_REFUSALS = responses(domain.InvalidArgument, domain.Unauthenticated, door.HostNotAllowed)


@router.get("/v1/schemas/job", dependencies=_CALLER, responses=_REFUSALS)
def job_schema() -> dict[str, Any]:
    """The JSON Schema of a job's spec: every field with its default, bounds and meaning."""
    return json_schema()


@router.get("/v1/capabilities", dependencies=_CALLER, responses=_REFUSALS)
def capabilities(context: Ctx) -> CapabilitiesView:
    """Reward rules with their parameters, metrics with unit and good direction, states, and limits."""
    return catalogue.capabilities(context.settings)


@router.get("/problems", responses=responses(domain.InvalidArgument))
def problems() -> list[ProblemKindView]:
    """What the `type` of every problem means."""
    return catalogue.problem_kinds()


@router.get("/problems/{code}", responses=responses(domain.InvalidArgument, door.ProblemNotFound))
def problem(code: str) -> ProblemKindView:
    """What one problem means: the place its `type` leads to."""
    return catalogue.problem_kind(code)
