"""Write the parts of the documents that are made from code: `python docs/generate.py`.

docs/metrics.md     from ppo_engine.stats.METRICS
"""

from __future__ import annotations

from pathlib import Path

from ppo_engine.stats import COMPONENT, METRICS, Better, Kind, Metric, prometheus_name

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
    component = scalar_row(COMPONENT, prometheus_name("env/reward/x_mean") + '{component="…"}')
    tables = [
        "## Scalars\n",
        SCALAR_COLUMNS,
        *scalars,
        component,
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


def main() -> None:
    """Write every generated document."""
    (DOCS / "metrics.md").write_text(metrics_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
