"""What this service can do and what its refusals mean, for both doors."""

from __future__ import annotations

from typing import Any

from api.errors import ProblemNotFound
from api.parameters import MAX_PAGE_SIZE
from api.settings import ApiSettings
from api.status import catalogue
from jobs.states import TERMINAL, JobState
from jobs.views import View
from ppo_engine.config import PRESETS, RULES
from ppo_engine.stats import FAMILIES, METRICS, Metric


class RuleView(View):
    """A reward rule and the JSON Schema of its parameters."""

    name: str
    description: str
    params: dict[str, Any]


class PresetView(View):
    """A published recipe, as a part of a spec."""

    name: str
    title: str
    source: str
    spec: dict[str, Any]


class MetricView(View):
    """A number that every step reports."""

    key: str
    kind: str
    unit: str
    help: str
    better: str | None
    """`up` or `down`; None where neither is good."""
    prometheus_name: str


class StateView(View):
    """A state of a job, and whether it is the end."""

    name: str
    terminal: bool


class LimitsView(View):
    """What a request may ask for."""

    body_bytes: int
    dataset_bytes: int
    page_size: int


class CapabilitiesView(View):
    """What this service can do."""

    rules: list[RuleView]
    presets: list[PresetView]
    metrics: list[MetricView]
    states: list[StateView]
    limits: LimitsView


class ProblemKindView(View):
    """What one `type` of problem means."""

    type: str
    code: str
    title: str
    status: int
    grpc_status: str
    meaning: str


def capabilities(settings: ApiSettings) -> CapabilitiesView:
    """Everything a client may want to know before it writes a spec."""
    return CapabilitiesView(
        rules=[
            RuleView(name=name, description=(model.__doc__ or "").strip(), params=model.model_json_schema())
            for name, model in RULES.items()
        ],
        presets=[
            PresetView(name=name.value, title=recipe.title, source=recipe.source, spec=recipe.fragment)
            for name, recipe in PRESETS.items()
        ],
        metrics=[
            *(_metric(metric, metric.prometheus_name) for metric in METRICS),
            *(_metric(family.metric, family.prometheus_name) for family in FAMILIES),
        ],
        states=[StateView(name=state.value, terminal=state in TERMINAL) for state in JobState],
        limits=LimitsView(
            body_bytes=settings.max_body_bytes,
            dataset_bytes=settings.max_dataset_bytes,
            page_size=MAX_PAGE_SIZE,
        ),
    )


def _metric(metric: Metric, prometheus_name: str) -> MetricView:
    return MetricView(
        key=metric.key,
        kind=metric.kind.value,
        unit=metric.unit,
        help=metric.help,
        better=metric.better.value or None,
        prometheus_name=prometheus_name,
    )


def problem_kinds() -> list[ProblemKindView]:
    """Every refusal there is."""
    return [ProblemKindView.model_validate(row) for row in catalogue()]


def problem_kind(code: str) -> ProblemKindView:
    """One refusal.

    Raises:
        ProblemNotFound: none has this code.
    """
    found = [kind for kind in problem_kinds() if kind.code == code]
    if not found:
        raise ProblemNotFound("there is no problem of this name; `/problems` lists all")
    return found[0]
