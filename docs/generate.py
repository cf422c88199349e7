"""Write the parts of the documents that are made from code: `python docs/generate.py`.

docs/metrics.md                        from ppo_engine.stats.METRICS
docs/from-trl.md                       from ppo_engine.trl and ppo_engine.stats.METRICS
the settings table of operations.md    from api, worker and jobs settings
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

from api.settings import ApiSettings
from jobs.settings import DomainSettings
from ppo_engine.stats import FAMILIES, METRICS, Better, Kind, Metric
from ppo_engine.trl import FIELDS, METRIC_NOTES
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

TRL_METRICS_HEAD = """

## Metrics

Every key has the name it had. Where the meaning was mended:

| key | |
|---|---|
"""


def trl_page() -> str:
    """The text of docs/from-trl.md."""
    fields = [f"| `{field.name}` | {_paths(field.ours)} | {field.note} |" for field in FIELDS]
    kept = {metric.key for metric in METRICS if not metric.ours}
    notes = [f"| `{key}` | {note} |" for key, note in METRIC_NOTES.items()]
    unchanged = ", ".join(f"`{key}`" for key in sorted(kept - METRIC_NOTES.keys()))
    return TRL_HEAD + "\n".join(fields) + TRL_METRICS_HEAD + "\n".join(notes) + f"\n\nAs they were: {unchanged}.\n"


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


def documents() -> dict[str, str]:
    """File name and text of everything that is generated."""
    return {"metrics.md": metrics_page(), "from-trl.md": trl_page(), "operations.md": operations_page()}


def main() -> None:
    """Write every generated document."""
    for name, text in documents().items():
        (DOCS / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
