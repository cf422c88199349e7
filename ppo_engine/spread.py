"""How the values of a reward lie: plain arithmetic over at most a few hundred floats."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

from ppo_engine.errands import Histogram, Spread

_BINS = 20
_QUANTILES = {"p05": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95}


def spread_of(values: Sequence[float], groups: Sequence[Hashable], lengths: Sequence[int]) -> Spread | None:
    """Describe some values; None without any.

    Args:
        groups: what each value's prompt is known by; values of one prompt are compared.
        lengths: of each value's response, characters.
    """
    if not values:
        return None
    ordered = sorted(values)
    mean = math.fsum(values) / len(values)
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
    return Spread(
        count=len(values),
        mean=mean,
        std=std,
        minimum=ordered[0],
        maximum=ordered[-1],
        quantiles={name: quantile(ordered, share) for name, share in _QUANTILES.items()},
        histogram=histogram(ordered),
        share_at_minimum=values.count(ordered[0]) / len(values),
        share_at_maximum=values.count(ordered[-1]) / len(values),
        length_correlation=correlation(values, lengths),
        zero_spread_share=zero_spread_share(values, groups),
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` of a sorted sample lies, between neighbours by linear interpolation."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def histogram(ordered: Sequence[float]) -> Histogram:
    """Counts in bins of equal width; a single bin where all values are equal."""
    low, high = ordered[0], ordered[-1]
    width = high / _BINS - low / _BINS  # divided first: the range of two floats may be no float
    if not width:
        return Histogram(edges=[low, high], counts=[len(ordered)])
    counts = [0] * _BINS
    for value in ordered:
        counts[min(int(value / width - low / width), _BINS - 1)] += 1
    return Histogram(edges=[*(low + i * width for i in range(_BINS)), high], counts=counts)


def correlation(values: Sequence[float], others: Sequence[float]) -> float | None:
    """Pearson's r; None where one of the two does not vary."""
    left, right = _centred(values), _centred(others)
    size = math.hypot(*left) * math.hypot(*right)
    dot = math.fsum(a * b for a, b in zip(left, right, strict=True))
    return dot / size if size and math.isfinite(size) else None


def _centred(values: Sequence[float]) -> list[float]:
    mean = math.fsum(values) / len(values)
    return [value - mean for value in values]


def zero_spread_share(values: Sequence[float], groups: Sequence[Hashable]) -> float | None:
    """Of the groups with several values, the share in which all are equal; None without such a group."""
    found: dict[Hashable, list[float]] = {}
    for value, group in zip(values, groups, strict=True):
        found.setdefault(group, []).append(value)
    several = [group for group in found.values() if len(group) > 1]
    return sum(min(group) == max(group) for group in several) / len(several) if several else None
