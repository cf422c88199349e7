"""The other processes of a run: the main one starts, watches and ends them, so the supervisor sees one process.

`accelerate launch` and torchrun are not used: on a CPU the first starts one process only, and both turn SIGTERM into a
kill after 30 seconds and an exit code of failure, where a run must finish its step and checkpoint. A run that one of
them started (its processes are there already) is joined all the same: see `runtime`.

Each child's standard input is a pipe that stays open and empty: it leaves when the main process dies. On its standard
output it writes an empty line every second as a sign of life, and a `failed` event if it fails.
"""

from __future__ import annotations

import logging
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence

import torch.distributed as dist
from pydantic import ValidationError
from torch._C._distributed_c10d import TCPStore

from ppo_engine.errors import ProcessLost
from ppo_engine.events import Failed, parse
from ppo_engine.runtime import Meeting

SIGN_OF_LIFE_SECONDS = 1.0
SILENCE_SECONDS = 30.0
"""A process that gave no sign of life for so long hangs: they come from a thread of their own."""
GRACE_SECONDS = 5.0
"""How long the main process may go on after another failed, to end by itself."""
_HOST = "127.0.0.1"

log = logging.getLogger(__name__)
Popen = subprocess.Popen[bytes]


def launched() -> bool:
    """Whether torchrun or `accelerate launch` started this process, and others beside it."""
    return dist.is_torchelastic_launched()


def join(rank: int, count: int, port: int) -> Meeting:
    """Where the main process of this rank is."""
    return Meeting(rank, count, TCPStore(_HOST, port, is_master=False))


class Crew:
    """The processes of ranks 1 and up."""

    def __init__(self, arguments: Sequence[str], count: int, emit: Callable[[Failed], None]) -> None:
        """Start them with the main process' own arguments; `emit` tells the supervisor of a failure."""
        self._store = TCPStore(_HOST, 0, is_master=True, wait_for_workers=False)
        self.meeting = Meeting(0, count, self._store)
        self._emit = emit
        self._lost: Failed | None = None
        self._loss = threading.Event()
        self._turn = threading.Lock()
        self._told = False
        command = [sys.executable, "-m", "ppo_engine", *arguments, "--port", str(self._store.port)]
        self._children = [_spawn([*command, "--rank", str(rank)]) for rank in range(1, count)]
        for rank, child in enumerate(self._children, start=1):
            threading.Thread(target=self._watch, args=(rank, child), name=f"rank-{rank}", daemon=True).start()

    def tell(self, failure: Failed) -> None:
        """Report a failure to the supervisor, once, and end the others."""
        with self._turn:
            if not self._told:
                self._told = True
                self._emit(failure)
        for child in self._children:
            child.kill()

    def lost(self) -> Failed | None:
        """What became of another process. Waits a little: its end may be the cause of an error just seen here."""
        self._loss.wait(GRACE_SECONDS)
        return self._lost

    def close(self) -> None:
        """Wait for the others, who end by themselves after the last step."""
        with self._turn:
            self._told = True
        for child in self._children:
            try:
                child.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def _watch(self, rank: int, child: Popen) -> None:
        """Until one process ends or falls silent. Then the run is over, also where the main thread waits for it."""
        failure = self._end(rank, child)
        if failure is None:
            return
        with self._turn:
            self._lost = self._lost or failure
        self._loss.set()
        threading.Event().wait(GRACE_SECONDS)
        with self._turn:
            over = self._told
        if not over:
            log.error("%s", failure.message)
            self.tell(failure)
            os._exit(1)

    def _end(self, rank: int, child: Popen) -> Failed | None:
        """Why a process is lost; None for one that ended well."""
        if child.stdout is None:
            raise ValueError("not a pipe")
        who, rest = f"process {rank} of {self.meeting.count}", b""
        failed: Failed | None = None
        while select.select([child.stdout], [], [], SILENCE_SECONDS)[0]:
            chunk = os.read(child.stdout.fileno(), 65536)
            if not chunk:
                code = child.wait()
                return None if code == 0 else failed or _failed(f"{who} died: {_how(code)}")
            *lines, rest = (rest + chunk).split(b"\n")
            failed = next((event for line in lines if (event := _read(line))), failed)
        return _failed(f"{who} gave no sign of life for {SILENCE_SECONDS:.0f} seconds")


def show_life(write: Callable[[str], None]) -> None:
    """Write a sign of life every second, from a thread; leave when nobody reads them any more."""

    def beat() -> None:
        while True:
            try:
                write("\n")
            except OSError:
                os._exit(1)
            threading.Event().wait(SIGN_OF_LIFE_SECONDS)

    threading.Thread(target=beat, name="sign-of-life", daemon=True).start()


def _spawn(command: Sequence[str]) -> Popen:
    """In the same process group as this one, so that it ends with it."""
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _read(line: bytes) -> Failed | None:
    if not line:
        return None
    try:
        event = parse(line)
    except ValidationError:
        return None
    return event if isinstance(event, Failed) else None


def _failed(message: str) -> Failed:
    error = ProcessLost(message)
    return Failed(
        code=error.code,
        category=error.category,
        message=message,
        retryable=error.retryable,
        suggestion=error.advice,
        step=0,  # the main process knows better
    )


def _how(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
