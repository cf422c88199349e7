"""How often an owner may call this process, or an address show keys that do not work: token buckets, in memory.

Refilled steadily, so a burst is allowed and a steady stream too. Each process counts for itself: with three of them
behind a balancer an owner gets three times as much.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from api.errors import RateLimited

_MOST_BUCKETS = 10_000
_OWNER_ADVICE = (
    "more than {:g} requests a second; wait, or ask less often: "
    "`GET /v1/jobs/{{id}}/events` as a stream replaces many requests"
)
_STRANGER_ADVICE = (
    "more than {:g} requests a second without a key that works came from your address; correct the key, and wait"
)


@dataclass(frozen=True, slots=True)
class Rate:
    """The limit: requests per second on average, and how many at once."""

    per_second: float
    burst: int
    policy: str = "owner"
    """What it counts, for the headers."""
    advice: str = _OWNER_ADVICE
    """What a refusal says; `{}` is the rate."""


def failures(per_second: float, burst: int) -> Rate | None:
    """The limit of one address's requests without a usable key; None for no limit."""
    return Rate(per_second, burst, "failed-keys", _STRANGER_ADVICE) if per_second else None


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
            "RateLimit-Policy": f'"{self.rate.policy}";q={self.rate.burst};w={max(1, math.ceil(full_seconds))}',
            "RateLimit": f'"{self.rate.policy}";r={int(self.tokens)};t={math.ceil(reset_seconds)}',
        }


@dataclass(slots=True)
class Buckets:
    """The buckets of all owners, or of all addresses; used from one event loop, so nothing here is locked."""

    _buckets: dict[str, tuple[float, float]] = field(default_factory=dict, repr=False)
    """Name: tokens, and when they were counted; the one used last is the last."""

    def left(self, name: str, rate: Rate) -> float:
        """Tokens that are there now."""
        now = time.monotonic()
        tokens, counted = self._buckets.get(name, (float(rate.burst), now))
        return min(rate.burst, tokens + (now - counted) * rate.per_second)

    def take(self, name: str, rate: Rate) -> Allowance:
        """Take a token.

        Raises:
            RateLimited: there is none; it says when there will be one.
        """
        tokens = self.left(name, rate)
        self._keep(name, tokens - 1 if tokens >= 1 else tokens)
        if tokens < 1:
            raise RateLimited(
                rate.advice.format(rate.per_second),
                retry_after_seconds=max(1, math.ceil((1 - tokens) / rate.per_second)),
                headers=Allowance(rate, tokens).headers(),
            )
        return Allowance(rate, tokens - 1)

    def _keep(self, name: str, tokens: float) -> None:
        """Beyond so many, the bucket that was not used for longest goes: it is the one most likely full again."""
        self._buckets.pop(name, None)
        if len(self._buckets) >= _MOST_BUCKETS:
            del self._buckets[next(iter(self._buckets))]
        self._buckets[name] = tokens, time.monotonic()
