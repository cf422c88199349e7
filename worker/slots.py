"""The slots of a worker: how many jobs it may run at once, and the jobs in them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from worker.supervisor import Supervisor

log = logging.getLogger(__name__)


class Slots:
    """Hands a free slot to whoever finds a job for it: a Celery task that was woken, or the poll."""

    def __init__(self, count: int, claim: Callable[[], Supervisor | None], on_free: Callable[[], None]) -> None:
        """`claim` takes the next job for a slot; `on_free` is called when a slot has become free."""
        self.count = count
        self._claim = claim
        self._on_free = on_free
        self._free = threading.BoundedSemaphore(count)
        self._lock = threading.Lock()
        self._running: set[Supervisor] = set()

    @property
    def busy(self) -> int:
        """Jobs that run now."""
        return len(self._running)

    @property
    def free(self) -> int:
        """Slots without a job."""
        return self.count - self.busy

    def oldest_lease_seconds(self) -> float:
        """Age of the oldest lease held; 0 without one."""
        with self._lock:
            return max((supervisor.keeper.age_seconds for supervisor in self._running), default=0.0)

    def run_next(self) -> bool:
        """Take the next job and supervise it to its end, here; False at once when none, or no slot, can be had."""
        supervisor = self._take()
        if supervisor is None:
            return False
        self._supervise(supervisor)
        return True

    def start_next(self) -> bool:
        """The same in a thread of its own."""
        supervisor = self._take()
        if supervisor is None:
            return False
        threading.Thread(target=self._supervise, args=(supervisor,), name="supervisor").start()
        return True

    def wait_until_idle(self) -> None:
        """Wait until no job runs. Sleeps rather than waits on a lock, so that signals are still handled."""
        while self._running:
            time.sleep(0.05)

    def _take(self) -> Supervisor | None:
        if not self._free.acquire(blocking=False):
            return None
        supervisor = None
        try:
            supervisor = self._claim()
            if supervisor is not None:
                with self._lock:
                    self._running.add(supervisor)
        finally:
            if supervisor is None:
                self._free.release()
        return supervisor

    def _supervise(self, supervisor: Supervisor) -> None:
        try:
            supervisor.run()
        finally:
            with self._lock:
                self._running.discard(supervisor)
            self._free.release()
            self._on_free()
