"""The picture of a run: a panel for each curve, made to be read at a glance."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from statistics import fmean
from typing import Any

from jobs.views import MetricsView
from ppo_client.curves import CURVES, EVAL_REWARD, Curve
from ppo_client.errors import ClientError
from ppo_engine.stats import Better

_COLORS = ("#2563eb", "#d97706", "#7c3aed", "#dc2626", "#0d9488", "#4b5563")
_INK, _FAINT, _GRID = "#111827", "#6b7280", "#e5e7eb"
# Below this many steps a running mean hides more than it shows.
_SMOOTH_FROM_STEPS = 12
_HINTS = {Better.UP: "higher is better", Better.DOWN: "lower is better", Better.NEITHER: ""}


class PlotsMissing(ClientError):
    """Matplotlib is not installed."""


def draw(metrics: MetricsView, *, kl_target: float | None, formats: Sequence[str]) -> dict[str, bytes]:
    """The picture in each of `formats` ("png", "svg").

    Raises:
        PlotsMissing: the extra `report` is not installed.
    """
    figure = _figure(metrics, kl_target)
    pictures = {}
    for name in formats:
        buffer = BytesIO()
        figure.savefig(buffer, format=name, dpi=150, facecolor="white")
        pictures[name] = buffer.getvalue()
    return pictures


def _figure(metrics: MetricsView, kl_target: float | None) -> Any:
    try:
        import matplotlib as mpl  # noqa: PLC0415 (an optional extra, and slow to import)
        from matplotlib.figure import Figure  # noqa: PLC0415
        from matplotlib.layout_engine import ConstrainedLayoutEngine  # noqa: PLC0415
    except ImportError as error:
        raise PlotsMissing("plots need matplotlib: pip install 'ppo-service[report]'") from error
    with mpl.rc_context({"font.size": 9.5, "svg.fonttype": "path", "svg.hashsalt": "ppo", "axes.unicode_minus": True}):
        figure = Figure(figsize=(11, 6.2), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12))
        panels = figure.subplots(2, 3, sharex=True)
        for curve, color, axes in zip(CURVES, _COLORS, panels.flat, strict=True):
            _panel(axes, curve, color, metrics)
        _reward_band(panels[0, 0], metrics)
        _evaluated_reward(panels[0, 0], metrics)
        if kl_target is not None:
            _kl_target(panels[0, 1], kl_target)
        for axes in panels[1]:
            axes.set_xlabel("step", color=_FAINT)
        figure.draw_without_rendering()
    return figure


def _panel(axes: Any, curve: Curve, color: str, metrics: MetricsView) -> None:
    steps, values = points(metrics, curve.key)
    smooth = len(values) >= _SMOOTH_FROM_STEPS
    axes.plot(steps, values, color=color, linewidth=1 if smooth else 2, alpha=0.35 if smooth else 1)
    if smooth:
        axes.plot(steps, running_mean(values), color=color, linewidth=2.2)
    if not values:
        axes.text(0.5, 0.5, "not reported", transform=axes.transAxes, ha="center", va="center", color=_FAINT)
    axes.set_title(curve.title, loc="left", fontweight="bold", color=_INK, fontsize=11)
    axes.set_title(_HINTS[curve.better], loc="right", color=_FAINT, fontsize=8)
    axes.set_ylabel(curve.unit.replace("^2", "²"), color=_FAINT)
    _plain(axes)


def _plain(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_GRID)
    axes.tick_params(colors=_FAINT, length=0)
    axes.grid(color=_GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.margins(x=0.02, y=0.12)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.yaxis.get_major_locator().set_params(nbins=5)


def _reward_band(axes: Any, metrics: MetricsView) -> None:
    steps, means = points(metrics, "env/reward_mean")
    std_steps, deviations = points(metrics, "env/reward_std")
    if steps and steps == std_steps:
        pairs = list(zip(means, deviations, strict=True))
        low, high = [mean - std for mean, std in pairs], [mean + std for mean, std in pairs]
        axes.fill_between(steps, low, high, color=_COLORS[0], alpha=0.1, linewidth=0)
        axes.set_title(f"{_HINTS[Better.UP]}; band: ± 1 std", loc="right", color=_FAINT, fontsize=8)


def _evaluated_reward(axes: Any, metrics: MetricsView) -> None:
    steps, values = points(metrics, EVAL_REWARD.key)
    if values:
        axes.plot(steps, values, color=_INK, linewidth=1, marker="o", markersize=4, label="evaluated")
        axes.legend(frameon=False, fontsize=8, labelcolor=_FAINT)


def _kl_target(axes: Any, target: float) -> None:
    _, top = axes.get_ylim()
    # A target far above the curve would flatten it.
    if target <= 2 * top:
        axes.axhline(target, color=_FAINT, linewidth=1, linestyle=(0, (4, 3)))
        axes.annotate(f"target {target:g}", (1, target), xycoords=("axes fraction", "data"), ha="right", va="bottom",
                      color=_FAINT, fontsize=8)  # fmt: skip


def points(metrics: MetricsView, key: str) -> tuple[list[int], list[float]]:
    """Steps that report `key`, and its values."""
    found = [(step, value) for step, value in zip(metrics.steps, metrics.series.get(key, []), strict=False)
             if value is not None]  # fmt: skip
    return [step for step, _ in found], [value for _, value in found]


def running_mean(values: Sequence[float], window: int = 7) -> list[float]:
    """Means over `window` values around each, over those that exist at the ends."""
    half = window // 2
    return [fmean(values[max(0, index - half) : index + half + 1]) for index in range(len(values))]
