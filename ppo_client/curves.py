"""The few curves that tell how a PPO run goes, for the terminal and for the report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from jobs.views import JobView
from ppo_engine.stats import SCALARS, Better


@dataclass(frozen=True, slots=True)
class Curve:
    """A metric with a short name; unit, help and good direction are the engine's."""

    key: str
    name: str
    title: str

    @property
    def unit(self) -> str:
        return SCALARS[self.key].unit

    @property
    def better(self) -> Better:
        return SCALARS[self.key].better


CURVES = (
    Curve("env/reward_mean", "reward", "Reward"),
    Curve("objective/kl", "kl", "KL from the reference"),
    Curve("ppo/policy/entropy", "entropy", "Entropy of the policy"),
    Curve("ppo/loss/value", "value loss", "Value loss"),
    Curve("ppo/policy/clipfrac", "clipfrac", "Clipped share of the updates"),
    Curve("tokens/responses_len_mean", "length", "Response length"),
)

EVAL_REWARD = Curve("eval/reward_mean", "eval reward", "Reward, evaluated")
SHOWN = (CURVES[0], EVAL_REWARD, *CURVES[1:])
"""The curves as a terminal shows them; a picture has the evaluated reward in the panel of the reward."""

_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int) -> str:
    """A curve in `width` characters or fewer, scaled from its lowest to its highest value."""
    points = thin(values, width)
    if not points:
        return ""
    low, high = min(points), max(points)
    if high == low:
        return _BARS[0] * len(points)
    return "".join(_BARS[round((value - low) / (high - low) * (len(_BARS) - 1))] for value in points)


def thin(values: Sequence[float], width: int) -> list[float]:
    """Means of `width` equal stretches, or the values themselves where they fit."""
    count = len(values)
    if count <= width:
        return list(values)
    edges = [index * count // width for index in range(width + 1)]
    return [fmean(values[start:end]) for start, end in pairwise(edges)]


def trend(values: Sequence[float], window: int = 5) -> int:
    """1, -1 or 0: whether the mean of the last `window` values is above, below or like that before it.

    "Like" means within one standard error of the difference, so that noise rarely shows an arrow;
    fewer than six values tell nothing.
    """
    if len(values) < 6:
        return 0
    span = min(window, len(values) // 2)
    recent, before = values[-span:], values[-2 * span : -span]
    change = fmean(recent) - fmean(before)
    return 0 if abs(change) <= _noise(before, recent) else (1 if change > 0 else -1)


def is_good(curve: Curve, direction: int) -> bool | None:
    """Whether this direction is the wanted one; None where there is none."""
    if direction == 0 or curve.better is Better.NEITHER:
        return None
    return (direction > 0) == (curve.better is Better.UP)


def number(value: float) -> str:
    """A value in at most about six characters."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def duration(seconds: float) -> str:
    """Seconds as people say them: 8s, 1m 12s, 2h 05m."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02d}m"


def coarse(seconds: float) -> str:
    """Seconds in one unit, for a list: 8s, 12m, 5h, 9d."""
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f}{unit}"
    return f"{max(seconds, 0):.0f}s"


def size(count_bytes: float) -> str:
    """Bytes as people say them."""
    gib, mib = 2**30, 2**20
    return f"{count_bytes / gib:,.1f} GiB" if count_bytes >= gib else f"{count_bytes / mib:,.1f} MiB"


def why_ended(job: JobView) -> str:
    """Why a job ended or paused before its last step, in brackets; empty where nothing needs to be said."""
    told = job.stop_reason not in (None, "completed", str(job.state))
    return f" ({job.stop_reason})" if told else ""


def run_time(job: JobView) -> str:
    """How long the job has run, from its first start to its end or last change."""
    if job.start_time is None:
        return "not started"
    return duration(((job.end_time or job.update_time) - job.start_time).total_seconds())


def headline(scalars: Mapping[str, float]) -> str:
    """The curves' values of one step on one line."""
    return "  ".join(
        f"{curve.name.replace(' ', '_')} {number(scalars[curve.key])}" for curve in SHOWN if curve.key in scalars
    )


def _noise(*groups: Sequence[float]) -> float:
    """Standard error of the difference of the groups' means."""
    variance = 0.0
    for group in groups:
        mean = fmean(group)
        variance += sum((value - mean) ** 2 for value in group) / len(group) ** 2
    return math.sqrt(variance)
