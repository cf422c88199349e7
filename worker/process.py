"""One engine as a child process: events on one pipe, a log on the other, stdin as its lifeline."""

from __future__ import annotations

import fcntl
import math
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

from pydantic import ValidationError

from ppo_engine.events import Event, StepDone, parse
from worker.engine_log import EngineLog

MAX_LINE_BYTES = 8 * 2**20
_PIPE_BYTES = 2**20
"""Room for events while a database write waits: the engine trains on instead of blocking on its pipe."""
_CHUNK_BYTES = 64 * 2**10
_LINGER_SECONDS = 2.0


class ProtocolError(Exception):
    """The engine wrote something that is not an event."""


@dataclass(frozen=True)
class Exit:
    """How a process ended: with a code, or by a signal."""

    code: int | None
    signal: str | None

    @classmethod
    def of(cls, returncode: int) -> Exit:
        """From `Popen.returncode`, which is negative for a signal."""
        if returncode >= 0:
            return cls(code=returncode, signal=None)
        try:
            return cls(code=None, signal=signal.Signals(-returncode).name)
        except ValueError:
            return cls(code=None, signal=f"SIG{-returncode}")


Popen = subprocess.Popen[bytes]


def spawn(command: Sequence[str], env: Mapping[str, str]) -> Popen:
    """Start an engine in a process group of its own, with three pipes; raises OSError when it cannot be run."""
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=dict(env), start_new_session=True)


def bury(process: Popen) -> Exit:
    """Kill what is left of a spawned process and its group, reap it, close its pipes; returns how it ended."""
    if process.returncode is None:
        _killpg(process, signal.SIGKILL)
        process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    return Exit.of(process.returncode)


def _killpg(process: Popen, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


class EngineProcess:
    """A running engine. `read` belongs to one thread; `terminate`, `kill` and `dump_stacks` may be called from any.

    Its standard input is a pipe that stays open and empty: when this process dies, however it dies, the engine reads
    end-of-file and stops. No other child can hold that pipe open, since all its descriptors are close-on-exec.
    """

    def __init__(self, process: Popen, log: EngineLog) -> None:
        """Take over a process that `spawn` started."""
        self._log = log
        self._popen = process
        self._buffer = bytearray()
        self._lock = threading.Lock()
        self._exited_at: float | None = None
        self._empty_at: float | None = None
        """When, after the exit, there was nothing to read for the first time."""
        self._late_bytes = 0
        """Read after the exit."""
        self._selector = selectors.DefaultSelector()
        self._watch(self._popen.stdout, self._events)
        self._watch(self._popen.stderr, self._take_log)

    @property
    def pid(self) -> int:
        """Process id, which is also the id of its group."""
        return self._popen.pid

    def read(self, timeout_seconds: float) -> Iterator[Event]:
        """Yield the events that are there, waiting at most the timeout for something to read.

        Raises:
            ProtocolError: a line that is no event, or one without an end.
        """
        exited, ready = self._exited_at is not None, self._selector.select(timeout_seconds)
        if exited and not ready and self._empty_at is None:
            self._empty_at = time.monotonic()
        for key, _ in ready:
            chunk = os.read(key.fd, _CHUNK_BYTES)
            if not chunk:
                self._selector.unregister(key.fileobj)
            self._late_bytes += len(chunk) if exited else 0
            yield from key.data(chunk)

    def ended(self) -> bool:
        """Whether it has exited and all it wrote is read."""
        if not self._exited():
            return False
        # What the engine wrote, at most as much as the pipes hold, is read to its end, however long each report takes.
        # A grandchild that left the group may hold the pipes open, and even write on; it is not waited for.
        drained = not self._selector.get_map()
        empty = self._empty_at is not None and time.monotonic() - self._empty_at > _LINGER_SECONDS
        return drained or empty or self._late_bytes > 2 * _PIPE_BYTES

    def terminate(self) -> None:
        """Ask the whole process group to stop."""
        self._signal_group(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the whole process group."""
        self._signal_group(signal.SIGKILL)

    def dump_stacks(self) -> None:
        """Ask the engine to write the stacks of its threads to its log."""
        with self._lock:
            if self._popen.poll() is None:
                os.kill(self.pid, signal.SIGUSR1)

    def close(self) -> Exit:
        """Kill what still runs, reap it, close the pipes; returns how it ended."""
        self.kill()
        self._popen.wait()
        self._exited()
        self._selector.close()
        self._log.close()
        return bury(self._popen)

    def _exited(self) -> bool:
        with self._lock:
            if self._exited_at is None and self._popen.poll() is not None:
                self._exited_at = time.monotonic()
                # What it started must not outlive it and keep the device.
                _killpg(self._popen, signal.SIGKILL)
            return self._exited_at is not None

    def _signal_group(self, number: signal.Signals) -> None:
        with self._lock:
            if self._exited_at is None:
                _killpg(self._popen, number)

    def _watch(self, pipe: IO[bytes] | None, take: Callable[[bytes], Iterator[Event]]) -> None:
        if pipe is None:
            raise ValueError("not a pipe")
        # Beyond a user's quota of pipe memory, or where there is no such call, the default size has to do.
        with suppress(OSError, AttributeError):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._selector.register(pipe, selectors.EVENT_READ, take)

    def _take_log(self, chunk: bytes) -> Iterator[Event]:
        self._log.write(chunk)
        return iter(())

    def _events(self, chunk: bytes) -> Iterator[Event]:
        """Events whose line is complete. A last line without an end is the mark of a killed writer, not an event."""
        first, *others = chunk.split(b"\n")
        self._buffer += first
        if len(self._buffer) > MAX_LINE_BYTES:
            raise ProtocolError(f"a line of more than {MAX_LINE_BYTES} bytes")
        for start in others:
            line, self._buffer = self._buffer, bytearray(start)
            yield _event(bytes(line))


def _event(line: bytes) -> Event:
    try:
        event = parse(line)
    except ValidationError as error:
        raise ProtocolError(f"not an event: {line[:200]!r}") from error
    if isinstance(event, StepDone) and not all(map(math.isfinite, event.scalars.values())):
        bad = [key for key, value in event.scalars.items() if not math.isfinite(value)]
        raise ProtocolError(f"step {event.step} reports a number that is not finite: {', '.join(bad[:5])}")
    return event


def start_process(command: Sequence[str], env: Mapping[str, str], log: EngineLog) -> EngineProcess:
    """An engine that `command` starts; the log is closed where it cannot be, and OSError raised."""
    try:
        return EngineProcess(spawn(command, env), log)
    except OSError:
        log.close()
        raise
