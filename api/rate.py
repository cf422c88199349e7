"""How often an owner may call this process: one token bucket per owner, in memory.

Refilled steadily, so a burst is allowed and a steady stream too. Each process counts for itself: with three of them
behind a balancer an owner gets three times as much.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from api.errors import RateLimited

_MOST_BUCKETS = 10_000


@dataclass(frozen=True, slots=True)
class Rate:
    """The limit: requests per second on average, and how many at once."""

    per_second: float
    burst: int


@dataclass(frozen=True, slots=True)
class Allowance:
    """What is left of a limit after a request."""

    rate: Rate
    tokens: float

    def headers(self) -> dict[str, str]:
        """`RateLimit-Policy` and `RateLimit` of draft-ietf-httpapi-ratelimit-headers-10."""
        full_seconds = self.rate.burst / self.rate.per_second
        reset_seconds = (self.rate.burst - self.tokens) / self.rate.per_second
        return {
            "RateLimit-Policy": f'"owner";q={self.rate.burst};w={max(1, math.ceil(full_seconds))}',
            "RateLimit": f'"owner";r={int(self.tokens)};t={math.ceil(reset_seconds)}',
        }


@dataclass(slots=True)
class Buckets:
    """All owners' buckets; used from one event loop, so nothing here is locked."""

    _buckets: dict[str, tuple[float, float]] = field(default_factory=dict, repr=False)
    """Owner: tokens, and when they were counted."""

    def take(self, owner_id: str, rate: Rate) -> Allowance:
        """Take a token.

        Raises:
            RateLimited: there is none; it says when there will be one.
        """
        now = time.monotonic()
        tokens, counted = self._buckets.get(owner_id, (float(rate.burst), now))
        tokens = min(rate.burst, tokens + (now - counted) * rate.per_second)
        if tokens < 1:
            self._buckets[owner_id] = tokens, now
            raise RateLimited(
                f"more than {rate.per_second:g} requests a second; wait, or ask less often: "
                "`GET /v1/jobs/{id}/events` as a stream replaces many requests",
                retry_after_seconds=max(1, math.ceil((1 - tokens) / rate.per_second)),
                headers=Allowance(rate, tokens).headers(),
            )
        if len(self._buckets) >= _MOST_BUCKETS and owner_id not in self._buckets:
            self._forget_full(rate, now)
        self._buckets[owner_id] = tokens - 1, now
        return Allowance(rate, tokens - 1)

    def _forget_full(self, rate: Rate, now: float) -> None:
        """A bucket that has filled up again is as good as none."""
        full_seconds = rate.burst / rate.per_second
        self._buckets = {owner: kept for owner, kept in self._buckets.items() if now - kept[1] < full_seconds}
