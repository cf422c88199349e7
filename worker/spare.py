"""One engine process that waits, with everything imported, so that the next job or errand starts in a moment.

Only a hand-over may fail here, never a job: whatever is wrong with the spare, the caller starts an ordinary process.
A spare is made when a slot is free and no job is in sight. Made while jobs fill all slots, it would take memory and
some seconds of a core from them; made when they have ended, it takes nothing from anybody.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence

from worker.engine_log import EngineLog
from worker.process import EngineProcess, Popen, bury, spawn

log = logging.getLogger(__name__)

_PAUSE_SECONDS = 30.0
_LONGEST_PAUSE_SECONDS = 600.0


class Spare:
    """Keeps at most one process waiting. It ends with this one, because it then reads end-of-file where it waits."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        """`command` waits for the words of another; `env` is the environment that this one will have."""
        self._command = command
        self._env = env
        self._lock = threading.Lock()
        self._process: Popen | None = None
        self._closed = False
        self._deaths = 0
        self._not_before = 0.0

    @property
    def pid(self) -> int | None:
        """Process id of the one that waits, if one does."""
        with self._lock:
            return None if self._process is None else self._process.pid

    def keep(self) -> None:
        """See that one waits. One that dies again and again is tried more and more rarely."""
        with self._lock:
            if self._process is not None and self._process.poll() is not None:
                self._bury(self._process)
            if self._process is not None or self._closed or time.monotonic() < self._not_before:
                return
            try:
                self._process = spawn(self._command, self._env)
            except OSError as error:
                self._pause(f"cannot be started: {error}")

    def take(self, words: Sequence[str], engine_log: EngineLog) -> EngineProcess | None:
        """Make the waiting process do what these words command (`run …`, `errand …`); None if none can be had.

        What is returned may yet die before its first event, having done nothing: it was killed meanwhile, or it found
        that its code is out of date.
        """
        with self._lock:
            process, self._process = self._process, None
            if process is None or process.stdin is None:
                return None
            try:
                os.write(process.stdin.fileno(), json.dumps(words).encode() + b"\n")
            except OSError:  # it has ended
                self._bury(process)
                return None
            self._deaths = 0
        return EngineProcess(process, engine_log)

    def close(self) -> None:
        """End the one that waits, and make no other."""
        with self._lock:
            process, self._process, self._closed = self._process, None, True
        if process is not None:
            bury(process)

    def _bury(self, process: Popen) -> None:
        self._process = None
        self._pause(f"ended ({bury(process)})")

    def _pause(self, why: str) -> None:
        pause_seconds = min(_PAUSE_SECONDS * 2**self._deaths, _LONGEST_PAUSE_SECONDS)
        self._deaths += 1
        self._not_before = time.monotonic() + pause_seconds
        log.warning("the waiting engine %s; the next one waits no sooner than in %.0f s", why, pause_seconds)
