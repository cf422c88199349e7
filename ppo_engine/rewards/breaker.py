"""A circuit breaker (Nygard, Release It!, 2007): who failed again and again is left alone for a while."""

from __future__ import annotations

import time
from collections.abc import Callable


class CircuitBreaker:
    """Opens after `limit` failures in a row; every `rest_seconds` one call may try whether it works again.

    Not for several threads.
    """

    def __init__(
        self, *, limit: int = 5, rest_seconds: float = 30.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit, self._rest_seconds, self._clock = limit, rest_seconds, clock
        self._failures = 0
        self._try_at = 0.0

    @property
    def failures(self) -> int:
        """Failures since the last success."""
        return self._failures

    def allows(self) -> bool:
        """Whether to make a call now; whoever is told so reports how it went."""
        if self._failures < self._limit:
            return True
        if self._clock() < self._try_at:
            return False
        self._try_at = self._clock() + self._rest_seconds  # this one tries; others wait for what it finds
        return True

    def succeeded(self) -> None:
        """A call worked: all is forgotten."""
        self._failures = 0

    def failed(self) -> None:
        """A call did not work."""
        self._failures += 1
        self._try_at = self._clock() + self._rest_seconds
