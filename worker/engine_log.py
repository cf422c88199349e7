"""Standard error of an engine: into a bounded file, the last lines kept in memory for the error object."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from worker.masking import mask

log = logging.getLogger(__name__)

_LINE_BYTES = 8192
_TAIL_LINES = 40
_TAIL_LINE_CHARS = 400


class EngineLog:
    """The log of one attempt. A full disk costs the file, never the job."""

    def __init__(self, path: Path, *, max_bytes: int, secrets: Sequence[str] = ()) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._secrets = secrets
        self._partial = b""
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._file: BinaryIO | None = path.open("ab", buffering=0)
        self._size = path.stat().st_size

    def write(self, chunk: bytes) -> None:
        """Take what the engine wrote; complete lines are stored at once."""
        *lines, self._partial = (self._partial + chunk).split(b"\n")
        for line in lines:
            self._store(line)
        while len(self._partial) > _LINE_BYTES:
            self._store(self._partial[:_LINE_BYTES])
            self._partial = self._partial[_LINE_BYTES:]

    def tail(self) -> str:
        """The last lines, without secrets."""
        return "\n".join(self._tail)

    def close(self) -> None:
        """Store an unfinished last line and close the file."""
        if self._partial:
            self._store(self._partial)
            self._partial = b""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _store(self, line: bytes) -> None:
        text = mask(line.decode(errors="replace"), self._secrets)
        # A progress bar overwrites itself with carriage returns: only its last state says something.
        self._tail.append(text.rstrip("\r").rpartition("\r")[2][:_TAIL_LINE_CHARS])
        self._append(text.encode() + b"\n")

    def _append(self, data: bytes) -> None:
        if self._file is None:
            return
        try:
            if self._size + len(data) > self._max_bytes:
                self._rotate()
            self._file.write(data)
            self._size += len(data)
        except OSError as error:
            log.warning("stopped writing %s: %s", self._path.name, error)
            self._file.close()
            self._file = None

    def _rotate(self) -> None:
        if self._file is not None:
            self._file.close()
        self._path.replace(self._path.with_name(f"{self._path.name}.1"))
        self._file = self._path.open("ab", buffering=0)
        self._size = 0
