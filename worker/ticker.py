"""A thread that does one thing again and again."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable

from jobs.errors import Unavailable

log = logging.getLogger(__name__)


class Ticker:
    """Runs `work` every so often, give or take a fifth so that workers do not move in step. Errors do not end it."""

    def __init__(self, name: str, work: Callable[[], object], *, every_seconds: float) -> None:
        self._work = work
        self._name = name
        self._every_seconds = every_seconds
        self._stopped = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)

    def start(self) -> None:
        """Begin, with a first run at once."""
        self._thread.start()

    def kick(self) -> None:
        """Run at once instead of at the next tick."""
        self._wake.set()

    def stop(self, timeout_seconds: float = 5.0) -> None:
        """End after the run in progress, or leave it behind when it takes longer."""
        self._stopped = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)

    def _loop(self) -> None:
        while not self._stopped:
            self._wake.clear()
            self._run_once()
            if not self._stopped:
                self._wake.wait(self._every_seconds * random.uniform(0.8, 1.2))  # noqa: S311 - jitter

    def _run_once(self) -> None:
        try:
            self._work()
        except Unavailable as error:
            log.warning("%s: %s", self._name, error)
        except Exception:
            log.exception("%s failed", self._name)
