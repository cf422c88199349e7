"""Keeps the lease of one attempt, and ends the engine when it can no longer be sure of it.

Two threads, because they must not wait for each other: one talks to the database and may hang there; the other never
does, and fences. Time is counted from when a heartbeat was *sent*: the database may have taken it at once and answered
late.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Self

from jobs.errors import LeaseLost, Unavailable
from jobs.lifecycle import Wishes

log = logging.getLogger(__name__)

_SLICE_SECONDS = 1.0

if hasattr(time, "CLOCK_BOOTTIME"):

    def now() -> float:
        """Seconds that also pass while the machine sleeps, as they do for the database."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:
    now = time.monotonic


class LeaseKeeper:
    """Sends heartbeats until closed; calls `on_loss` once when the lease is lost or can no longer be trusted."""

    def __init__(
        self,
        beat: Callable[[], Wishes],
        *,
        claimed_at: float,
        heartbeat_seconds: float,
        fence_seconds: float,
        on_loss: Callable[[], None],
        observe: Callable[[float | None], None] = lambda _seconds: None,
    ) -> None:
        """`claimed_at`: `now()` just before the claim was sent. `observe` gets each heartbeat's seconds, or None."""
        self._beat = beat
        self._renewed_at = claimed_at
        self._heartbeat_seconds = heartbeat_seconds
        self._fence_seconds = fence_seconds
        self._on_loss = on_loss
        self._observe = observe
        self._closed = threading.Event()
        self.lost = False
        """The database said that another attempt, or nobody, has the job."""
        self.fenced = False
        """No heartbeat has succeeded for so long that the lease may be gone."""
        self.wishes = Wishes()
        """What the owner wants, as the last heartbeat heard it; a cancel once heard stays."""

    def __enter__(self) -> Self:
        for name, loop in (("heartbeat", self._beat_until_closed), ("fence", self._fence_when_late)):
            threading.Thread(target=loop, name=name, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()

    @property
    def age_seconds(self) -> float:
        """Time since the last heartbeat that succeeded was sent."""
        return now() - self._renewed_at

    def require(self) -> None:
        """Before what cannot be undone: raise LeaseLost unless the lease can still be trusted.

        The threads may not know yet, if the whole process was stopped.
        """
        if self.lost or self.age_seconds > self._fence_seconds:
            raise LeaseLost("another attempt may have the job")

    def _beat_until_closed(self) -> None:
        wait_seconds = self._heartbeat_seconds
        while not self._closed.wait(wait_seconds):
            try:
                self._beat_once()
            except LeaseLost:
                self.lost = True
                self._on_loss()
                return
            except Unavailable as error:
                log.warning("heartbeat failed: %s", error)
                self._observe(None)
                wait_seconds = self._heartbeat_seconds * random.uniform(0.05, 0.15)  # noqa: S311 - jitter
            else:
                wait_seconds = self._heartbeat_seconds

    def _beat_once(self) -> None:
        sent_at = now()
        wishes = self._beat()
        self._renewed_at = sent_at
        self.wishes = replace(wishes, cancel=wishes.cancel or self.wishes.cancel)
        self._observe(now() - sent_at)

    def _fence_when_late(self) -> None:
        left = self._fence_seconds - self.age_seconds
        while left > 0:
            # In slices: a wait does not count the time that the machine slept.
            if self._closed.wait(min(left, _SLICE_SECONDS)):
                return
            left = self._fence_seconds - self.age_seconds
        log.error("no heartbeat for %.0f s: ending the engine", self.age_seconds)
        self.fenced = True
        self._on_loss()
