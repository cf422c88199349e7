"""What this service can do: the spec's schema, rules, metrics, limits, and what its problems mean."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends

from api import errors as door
from api.http.deps import Ctx, principal_of
from api.http.errors import responses
from api.http.queries import NO_QUERY
from api.parameters import MAX_PAGE_SIZE
from api.status import catalogue
from jobs import errors as domain
from jobs.spec import json_schema
from jobs.states import TERMINAL, JobState
from ppo_engine.config import PRESETS, RULES
from ppo_engine.stats import FAMILIES, METRICS, Metric

router = APIRouter(tags=["catalogue"], dependencies=[NO_QUERY])

_CALLER = [Depends(principal_of)]
_REFUSALS = responses(domain.InvalidArgument, domain.Unauthenticated, door.HostNotAllowed)


@router.get("/v1/schemas/job", dependencies=_CALLER, responses=_REFUSALS)
def job_schema() -> dict[str, Any]:
    """The JSON Schema of a job's spec: every field with its default, bounds and meaning."""
    return json_schema()


@router.get("/v1/capabilities", dependencies=_CALLER, responses=_REFUSALS)
def capabilities(context: Ctx) -> dict[str, Any]:
    """Reward rules with their parameters, metrics with unit and good direction, states, and limits."""
    return {
        "rules": [
            {"name": name, "description": (model.__doc__ or "").strip(), "params": model.model_json_schema()}
            for name, model in RULES.items()
        ],
        "presets": [
            {"name": name.value, "title": recipe.title, "source": recipe.source, "spec": recipe.fragment}
            for name, recipe in PRESETS.items()
        ],
        "metrics": [_metric(metric, metric.prometheus_name) for metric in METRICS]
        + [_metric(family.metric, family.prometheus_name) for family in FAMILIES],
        "states": [{"name": state.value, "terminal": state in TERMINAL} for state in JobState],
        "limits": {"body_bytes": context.settings.max_body_bytes, "page_size": MAX_PAGE_SIZE},
    }


@router.get("/problems", responses=responses())
def problems() -> list[dict[str, Any]]:
    """What the `type` of every problem means."""
    return list(catalogue())


@router.get("/problems/{code}", responses=responses(door.RouteNotFound))
def problem(code: str) -> dict[str, Any]:
    """What one problem means: the place its `type` leads to."""
    found = [row for row in catalogue() if row["code"] == code]
    if not found:
        raise door.RouteNotFound("there is no problem of this name; `/problems` lists all")
    return found[0]


def _metric(metric: Metric, prometheus_name: str) -> dict[str, Any]:
    return {
        "key": metric.key,
        "kind": metric.kind.value,
        "unit": metric.unit,
        "help": metric.help,
        "better": metric.better.value or None,
        "prometheus_name": prometheus_name,
    }
