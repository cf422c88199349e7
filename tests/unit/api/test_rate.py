"""Token buckets: a burst, a steady stream, one owner apart from another."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from api import rate
from api.errors import RateLimited
from api.rate import Buckets, Rate

SLOW = Rate(per_second=2, burst=4)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that the test sets."""
    clock = [100.0]
    monkeypatch.setattr(rate, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    return clock


def test_a_burst_is_taken_and_then_a_steady_stream(now: list[float]):
    buckets = Buckets()
    left = [int(buckets.take("ann", SLOW).tokens) for _ in range(4)]
    assert left == [3, 2, 1, 0]
    for _ in range(3):
        with pytest.raises(RateLimited) as refused:
            buckets.take("ann", SLOW)
        assert refused.value.retry_after_seconds == 1
    buckets.take("bob", SLOW)
    for _ in range(10):
        now[0] += 0.5
        buckets.take("ann", SLOW)
        with pytest.raises(RateLimited):
            buckets.take("ann", SLOW)


def test_a_rest_fills_the_bucket_and_not_more(now: list[float]):
    buckets = Buckets()
    buckets.take("ann", SLOW)
    now[0] += 3600
    for _ in range(4):
        buckets.take("ann", SLOW)
    with pytest.raises(RateLimited):
        buckets.take("ann", SLOW)


def test_a_long_wait_is_told_as_it_is(now: list[float]):
    hourly, buckets = Rate(per_second=1 / 3600, burst=1), Buckets()
    buckets.take("ann", hourly)
    now[0] += 600
    with pytest.raises(RateLimited) as refused:
        buckets.take("ann", hourly)
    assert refused.value.retry_after_seconds == 3000


def test_headers_are_those_of_the_draft(now: list[float]):
    buckets = Buckets()
    assert buckets.take("ann", SLOW).headers() == {
        "RateLimit-Policy": '"owner";q=4;w=2',
        "RateLimit": '"owner";r=3;t=1',
    }


def test_the_bucket_that_was_not_used_for_longest_is_forgotten(now: list[float], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rate, "_MOST_BUCKETS", 2)
    buckets = Buckets()
    for name in ("ann", "bob", "ann", "ann", "ann", "cleo"):
        now[0] += 0.001
        buckets.take(name, SLOW)
    with pytest.raises(RateLimited):
        buckets.take("ann", SLOW)
    assert buckets.left("bob", SLOW) == SLOW.burst


def test_names_without_number_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rate, "_MOST_BUCKETS", 100)
    buckets = Buckets()
    for number in range(1000):  # none of them is full again
        buckets.take(str(number), Rate(per_second=0.001, burst=2))
    assert len(buckets._buckets) == 100
