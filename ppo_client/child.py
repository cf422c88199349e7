"""One child process of the embedded service: its log, its end, its restarts."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import deque
from collections.abc import Mapping
from pathlib import Path

_ROTATE_BYTES = 20 << 20


class RestartBudget:
    """At most `limit` restarts within `window_seconds`, each after a longer pause."""

    def __init__(self, limit: int = 5, window_seconds: float = 60.0) -> None:
        self.limit = limit
        self.window_seconds = window_seconds
        self._times: deque[float] = deque()

    def next_pause(self, now: float) -> float | None:
        """Seconds to wait before the restart that is due at `now`; None when the budget is spent."""
        while self._times and now - self._times[0] > self.window_seconds:
            self._times.popleft()
        if len(self._times) >= self.limit:
            return None
        self._times.append(now)
        return float(min(0.5 * 2 ** (len(self._times) - 1), 8.0))

    @property
    def used(self) -> int:
        """Restarts in the window."""
        return len(self._times)


class Child:
    """A module run under `ppo_client.tether`, its output appended to a log file."""

    def __init__(self, module: str, log: Path, folder: Path, environment: Mapping[str, str]) -> None:
        self.module = module
        self.log = log
        self.budget = RestartBudget()
        self._folder = folder
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start the program; its process group is its own, so that a Ctrl-C in the terminal reaches only the parent."""
        self._close()
        rotate(self.log)
        with self.log.open("ab") as output:
            self._log_start = output.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ppo_client.tether", self.module],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                env=self._environment,
                process_group=0,
            )

    def ended(self) -> str | None:
        """How the program ended, in words; None while it runs."""
        code = self._process.poll() if self._process else None
        return None if code is None else describe_exit(code)

    def last_words(self) -> str:
        """The end of what the program has written since its last start, indented."""
        return tail(self.log, start=self._log_start)

    def stop(self, grace_seconds: float) -> bool:
        """Ask the program to end, then make it; True if it ended by itself."""
        if self._process is None or self._process.poll() is not None:
            return True
        self._process.terminate()
        try:
            self._process.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return False
        finally:
            self._close()
        return True

    def _close(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def kill(self) -> None:
        """End the program at once."""
        self.stop(0.0)


def rotate(log: Path) -> None:
    """Put a large log aside as `<name>.1`, so that two files bound what the logs take."""
    if log.exists() and log.stat().st_size > _ROTATE_BYTES:
        log.replace(log.with_name(f"{log.name}.1"))


def tail(log: Path, lines: int = 12, *, start: int = 0) -> str:
    """The last lines of a log from byte `start` on, indented; empty if there is none."""
    if not log.exists():
        return ""
    text = log.read_bytes()[start:].decode(errors="replace").splitlines()[-lines:]
    return "\n".join(f"    {line}" for line in text)


def describe_exit(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
