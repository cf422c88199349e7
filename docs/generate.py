"""Write the parts of the documents that are made from code: `python docs/generate.py`.

docs/metrics.md                        from ppo_engine.stats.METRICS
docs/spec.md                           from jobs.spec.JobSpec and ppo_engine.config
docs/api/*.md                          from the OpenAPI document, the proto and docs/twins.py
docs/from-trl.md                       from ppo_engine.trl and ppo_engine.stats.METRICS
the settings table of operations.md    from api, worker and jobs settings
the table of reliability.md            from docs/faults.json, which `make robustness` writes
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Iterator
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

from api.settings import ApiSettings
from docs import api_pages
from jobs.settings import DomainSettings
from jobs.spec import JobSpec
from ppo_engine.config import PRESETS, RULES, OneOf
from ppo_engine.stats import FAMILIES, METRICS, Better, Kind, Metric
from ppo_engine.trl import ARGUMENTS, FIELDS, METRIC_NOTES
from worker.settings import WorkerSettings

DOCS = Path(__file__).parent

METRICS_HEAD = """\
# Metrics of a run

Made from `ppo_engine/stats.py` by `python docs/generate.py`; change it there.

Every step reports these numbers under exactly these keys to TensorBoard, to `GET /v1/jobs/{id}/metrics` (scalars) and,
while the job runs, to Prometheus at `/metrics/jobs` (scalars). "Good" is the direction to hope for; most numbers have
none. Keys and formulas are those of TRL 0.11.4's classic PPO trainer; the ones marked + are additions. A number that is
undefined in a step is absent, never NaN. How to read them: [operations.md](operations.md#reading-the-metrics).

"mean over updates" is the masked mean of each minibatch update, then the plain mean over all updates of the step.
"""

SCALAR_COLUMNS = "| key | unit | good | meaning | Prometheus name |\n|---|---|---|---|---|"
HISTOGRAM_COLUMNS = "| key | unit | values |\n|---|---|---|"


def metrics_page() -> str:
    """The text of docs/metrics.md."""
    scalars = [scalar_row(metric) for metric in METRICS if metric.kind is Kind.SCALAR]
    histograms = [histogram_row(metric) for metric in METRICS if metric.kind is Kind.HISTOGRAM]
    components = [scalar_row(family.metric, family.prometheus_name + '{component="…"}') for family in FAMILIES]
    tables = [
        "## Scalars\n",
        SCALAR_COLUMNS,
        *scalars,
        *components,
        "\n## Distributions (TensorBoard only)\n",
        HISTOGRAM_COLUMNS,
        *histograms,
    ]
    return METRICS_HEAD + "\n" + "\n".join(tables) + "\n"


def scalar_row(metric: Metric, exported: str = "") -> str:
    """One line of the scalars' table."""
    good = {Better.UP: "up", Better.DOWN: "down", Better.NEITHER: ""}[metric.better]
    mark = " +" if metric.ours else ""
    exported = exported or metric.prometheus_name
    return f"| `{metric.key}`{mark} | {metric.unit} | {good} | {metric.help} | `{exported}` |"


def histogram_row(metric: Metric) -> str:
    """One line of the distributions' table."""
    return f"| `{metric.key}` | {metric.unit} | {metric.help} |"


TRL_HEAD = """\
# Coming from TRL

Made from `ppo_engine/trl.py` and `ppo_engine/stats.py` by `python docs/generate.py`; change it there.

The names and formulas here are those of the classic `PPOTrainer` (`step()`, last in TRL 0.11.4). A recorded run of it
gives the same numbers: `python -m ppo_engine replay CASE.json`.

## Options

The 49 fields of `PPOConfig`, and the path in a job spec that each became.

| TRL | here | |
|---|---|---|
"""

TRL_ARGUMENTS_HEAD = """

What was passed to `PPOTrainer` and to `AutoModelForCausalLMWithValueHead`:

| TRL | here | |
|---|---|---|
"""

TRL_METRICS_HEAD = """

## Metrics

Every key has the name it had. Where the meaning was mended:

| key | |
|---|---|
"""


def trl_page() -> str:
    """The text of docs/from-trl.md."""
    fields, arguments = (
        "\n".join(f"| `{field.name}` | {_paths(field.ours)} | {field.note} |" for field in table)
        for table in (FIELDS, ARGUMENTS)
    )
    kept = {metric.key for metric in METRICS if not metric.ours}
    notes = [f"| `{key}` | {note} |" for key, note in METRIC_NOTES.items()]
    unchanged = ", ".join(f"`{key}`" for key in sorted(kept - METRIC_NOTES.keys()))
    options = TRL_HEAD + fields + TRL_ARGUMENTS_HEAD + arguments
    return options + TRL_METRICS_HEAD + "\n".join(notes) + f"\n\nAs they were: {unchanged}.\n"


def _paths(ours: str | None) -> str:
    return ", ".join(f"`{path}`" for path in ours.split(", ")) if ours else "none"


SETTINGS = {"every process": DomainSettings, "api": ApiSettings, "worker and relay": WorkerSettings}
SETTINGS_COLUMNS = "| variable | read by | default | meaning |\n|---|---|---|---|"
_SETTINGS_BLOCK = re.compile(r"(<!-- settings: .*? -->\n).*?(<!-- end -->)", re.DOTALL)


def operations_page() -> str:
    """The text of docs/operations.md with a fresh table of settings."""
    rows = [row for reader, cls in SETTINGS.items() for row in settings_rows(reader, cls)]
    table = "\n".join([SETTINGS_COLUMNS, *rows])
    page = (DOCS / "operations.md").read_text("utf-8")
    return _SETTINGS_BLOCK.sub(lambda match: f"{match[1]}{table}\n{match[2]}", page)


FAULT_COLUMNS = (
    "| fault | injected | jobs | lost | doubled | stale | recovery, median | worst |\n|---|---|---|---|---|---|---|---|"
)
_FAULTS_BLOCK = re.compile(r"(<!-- faults: .*? -->\n).*?(<!-- end -->)", re.DOTALL)


def reliability_page() -> str:
    """The text of docs/reliability.md with the table of the last full run."""
    run = json.loads((DOCS / "faults.json").read_text("utf-8"))
    rows = "\n".join(fault_row(row) for row in run["rows"])
    machine, seed = run["machine"], run["seed"]
    where = f"Seed {seed}; {machine['cores']} cores, Python {machine['python']}, {run['wall_seconds']:.0f} s."
    where = f"{where} {run.get('remark', '')}".rstrip()
    page = (DOCS / "reliability.md").read_text("utf-8")
    return _FAULTS_BLOCK.sub(lambda match: f"{match[1]}{where}\n\n{FAULT_COLUMNS}\n{rows}\n{match[2]}", page)


def fault_row(row: dict[str, Any]) -> str:
    """One line of the table of faults."""
    counts = [row[name] for name in ("injected", "jobs", "lost", "doubled", "stale_accepted")]
    seconds = [row[name] for name in ("recovery_median_seconds", "recovery_worst_seconds")]
    cells = ["" if value is None else f"{value:,}" for value in counts]
    cells += ["" if value is None else f"{value:.2f} s" for value in seconds]
    return f"| {row['fault']} | {' | '.join(cells)} |"


def settings_rows(reader: str, cls: type[BaseSettings]) -> list[str]:
    """One line of the table per field that `cls` itself declares."""
    prefix, spoken = cls.model_config.get("env_prefix", ""), attribute_docstrings(cls)
    return [
        f"| `{(prefix + name).upper()}` | {reader} | {default_text(field)} "
        f"| {field.description or spoken.get(name, '')} |"
        for name, field in cls.model_fields.items()
        if name in cls.__annotations__
    ]


def default_text(field: FieldInfo) -> str:
    """The default as an operator would write it; computed ones are explained by the meaning."""
    value: Any = field.default.get_secret_value() if isinstance(field.default, SecretStr) else field.default
    return "" if field.default_factory is not None or value in (None, "") else f"`{value}`"


def attribute_docstrings(cls: type) -> dict[str, str]:
    """The string after each annotated field, on one line."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0].body  # type: ignore[attr-defined]
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


SPEC_HEAD = """\
# The job spec

Made from `jobs/spec.py` and `ppo_engine/config/` by `python docs/generate.py`; change it there.

`POST /v1/jobs` and `CreateJob` take this document; `GET /v1/schemas/job` is the same as JSON Schema. Unknown fields are
refused with the nearest name, and every problem is reported at once. A field without a default is required where its
section is given. Sections marked "one of" are alternatives: exactly one of them is written.

"""
PRESETS_HEAD = """
## Presets

`ppo.preset` names a published recipe: what you write wins over it, it wins over the defaults. Its values, as a spec:

"""


def spec_page() -> str:
    """The text of docs/spec.md."""
    places: dict[type[BaseModel], str] = {}
    found = list(_models("", JobSpec, places))
    sections = "\n".join(_section(path, model, places) for path, model in found)
    rules = [f"| `{name}` | {_doc(model)} | {_fields_inline(model)} |" for name, model in RULES.items()]
    table = "\n".join(["\n## Rules\n", "| name | score | `params` |\n|---|---|---|", *rules])
    presets = [
        f"### {name}\n\n{recipe.title}. Source: {recipe.source}.\n\n"
        f"```json\n{json.dumps(recipe.fragment, indent=1)}\n```\n"
        for name, recipe in PRESETS.items()
    ]
    return SPEC_HEAD + sections + table + "\n" + PRESETS_HEAD + "\n".join(presets)


Section = tuple[str, type[BaseModel]]


def _models(path: str, model: type[BaseModel], places: dict[type[BaseModel], str]) -> Iterator[Section]:
    """Every section of the spec with its path, depth first, each once; `places` learns where."""
    places[model] = path
    yield path, model
    for name, field in model.model_fields.items():
        for inner in _inner_models(field.annotation):
            if inner not in places and inner.model_fields:
                place = f"{path}.{name}".lstrip(".") + ("[]" if get_origin(field.annotation) is list else "")
                yield from _models(place, inner, places)


def _inner_models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _inner_models(part)]


def _section(path: str, model: type[BaseModel], places: dict[type[BaseModel], str]) -> str:
    one_of = " (one of)" if issubclass(model, OneOf) else ""
    title = f"## `{path}`" if path else "## The document"
    rows = [_field_row(path, name, field, places) for name, field in model.model_fields.items()]
    table = "\n".join(["| field | type | default | meaning |\n|---|---|---|---|", *rows])
    return f"{title}\n\n{_doc(model)}{one_of}\n\n{table}\n"


def _field_row(path: str, name: str, field: FieldInfo, places: dict[type[BaseModel], str]) -> str:
    default = "required" if field.is_required() else _json(field.get_default(call_default_factory=True))
    meaning = field.description or " ".join(_doc(model) for model in _inner_models(field.annotation))
    elsewhere = [places[m] for m in _inner_models(field.annotation) if m in places]
    own = f"{path}.{name}".lstrip(".")
    see = "".join(f" See `{place}`." for place in elsewhere if place.removesuffix("[]") != own)
    return f"| `{name}` | {_type(field)} | {default} | {meaning}{see} |"


def _json(value: Any) -> str:
    if isinstance(value, BaseModel):
        return ""  # its own section says it
    return "" if value is None else f"`{json.dumps(value)}`"


def _type(field: FieldInfo) -> str:
    """The JSON type with its bounds."""
    bounds = [
        f"{sign} {getattr(rule, attribute)}"
        for rule in field.metadata
        for attribute, sign in (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤"))
        if getattr(rule, attribute, None) is not None
    ]
    return ", ".join([_type_name(field.annotation), *bounds])


def _type_name(annotation: Any) -> str:
    if get_origin(annotation) in (list, tuple):
        return f"list of {_type_name(get_args(annotation)[0])}"
    if get_origin(annotation) is dict or (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        return "object"
    if get_args(annotation):
        return _type_name(next(part for part in get_args(annotation) if part is not type(None)))
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return " / ".join(f"`{member.value}`" for member in annotation)
    return {int: "integer", float: "number", bool: "boolean", str: "string"}.get(annotation, "any")


def _fields_inline(model: type[BaseModel]) -> str:
    return "; ".join(_field_inline(name, field) for name, field in model.model_fields.items())


def _field_inline(name: str, field: FieldInfo) -> str:
    default = "required" if field.is_required() else _json(field.get_default(call_default_factory=True))
    return f"`{name}` ({', '.join(filter(None, [_type(field), default]))}): {field.description}"


def _doc(model: type) -> str:
    return " ".join((model.__doc__ or "").split())


def documents() -> dict[str, str]:
    """File name and text of everything that is generated."""
    return {
        "spec.md": spec_page(),
        "metrics.md": metrics_page(),
        "from-trl.md": trl_page(),
        "operations.md": operations_page(),
        "reliability.md": reliability_page(),
        **api_pages.pages(),
    }


def main() -> None:
    """Write every generated document."""
    for name, text in documents().items():
        (DOCS / name).parent.mkdir(exist_ok=True)
        (DOCS / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
