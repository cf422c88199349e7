"""How values lie, against the standard library and numbers worked out by hand."""

from __future__ import annotations

import math
import random
import statistics

import numpy as np
import pytest

from ppo_engine.spread import correlation, histogram, quantile, spread_of, zero_spread_share


def test_moments_quantiles_and_counts_are_those_of_the_textbook() -> None:
    draw = random.Random(0)
    values = [draw.gauss(3, 2) for _ in range(101)]
    found = spread_of(values, range(101), [draw.randrange(100) for _ in values])
    assert found is not None
    assert found.mean == pytest.approx(statistics.fmean(values))
    assert found.std == pytest.approx(statistics.pstdev(values))
    assert list(found.quantiles.values()) == pytest.approx(np.quantile(values, [0.05, 0.25, 0.5, 0.75, 0.95]))
    counts, edges = np.histogram(values, bins=20)
    assert found.histogram.counts == counts.tolist()
    assert found.histogram.edges == pytest.approx(edges)
    assert (found.share_at_minimum, found.share_at_maximum) == (1 / 101, 1 / 101)


def test_the_correlation_is_pearsons() -> None:
    assert correlation([1, 2, 3], [10, 20, 30]) == pytest.approx(1)
    assert correlation([1, 2, 3], [5, 3, 1]) == pytest.approx(-1)
    assert correlation([1, 2, 4, 8], [3, 1, 4, 1]) == pytest.approx(statistics.correlation([1, 2, 4, 8], [3, 1, 4, 1]))
    assert correlation([1, 1, 1], [1, 2, 3]) is None


def test_groups_without_a_difference_are_counted() -> None:
    assert zero_spread_share([1, 1, 0, 1, 7], "aabbc") == 0.5
    assert zero_spread_share([1, 2], "ab") is None


def test_equal_values_fill_one_bin_and_both_ends() -> None:
    found = spread_of([0.5] * 4, "abcd", [1, 2, 3, 4])
    assert found is not None
    assert (found.share_at_minimum, found.share_at_maximum, found.std) == (1, 1, 0)
    assert (found.histogram.edges, found.histogram.counts) == ([0.5, 0.5], [4])
    assert spread_of([], [], []) is None


@pytest.mark.parametrize("values", [[-3e38, 3e38], [0.0, 5e-324], [1.0, math.nextafter(1.0, 2.0)]])
def test_extreme_ranges_are_counted_whole(values: list[float]) -> None:
    assert sum(histogram(values).counts) == 2
    assert quantile(values, 0.5) <= values[1]
