"""A tar stream of known length, whose every byte has its place before anything is read.

All files are opened before the first byte goes out: retention may delete them meanwhile, and the stream still ends
whole. Order, names and headers depend on nothing but the members, so that the rest of a broken download fits its
beginning; where a byte is, is computed, so that the rest costs only its own reading.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from api.threads import in_thread
from jobs.archives import Bundle, Member
from jobs.errors import JobNotFound

_CHUNK_BYTES = 1 << 20
_END = bytes(2 * tarfile.BLOCKSIZE)


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of bytes: at hand, or the beginning of an open file."""

    size: int
    source: bytes | BinaryIO


@dataclass(frozen=True, slots=True)
class Archive:
    """An open tar; `chunks` sends and closes it."""

    pieces: list[Piece]
    files: ExitStack
    sha256: str
    """Of `manifest.json` in it, and so of all its bytes."""
    file_name: str

    @property
    def size(self) -> int:
        """Length of the tar, bytes."""
        return sum(piece.size for piece in self.pieces)

    async def chunks(self, start: int = 0, stop: int | None = None) -> AsyncGenerator[bytes, None]:
        """Bytes `start` to `stop` of the tar; the files are closed at the end or when the reader leaves."""
        end = self.size if stop is None else stop
        with self.files:
            at = 0
            for piece in self.pieces:
                first, last = max(start - at, 0), min(end - at, piece.size)
                at += piece.size
                if first >= last:
                    continue
                if isinstance(piece.source, bytes):
                    yield piece.source[first:last]
                    continue
                await in_thread(piece.source.seek, first)
                while first < last:
                    chunk = await in_thread(piece.source.read, min(last - first, _CHUNK_BYTES))
                    if not chunk:
                        raise OSError("a file became shorter while it was sent")
                    first += len(chunk)
                    yield chunk


def open_archive(bundle: Bundle) -> Archive:
    """Open every file of a bundle.

    Raises:
        JobNotFound: one is gone.
    """
    with ExitStack() as stack:
        try:
            pieces = [piece for member in bundle.members for piece in _pieces(member, stack)]
        except FileNotFoundError as error:
            raise JobNotFound("this is no longer kept") from error
        pieces.append(Piece(len(_END), _END))
        return Archive(pieces, stack.pop_all(), bundle.sha256, bundle.file_name)


def _pieces(member: Member, stack: ExitStack) -> Iterator[Piece]:
    info = tarfile.TarInfo(member.name)  # without an owner, and from the year 1970
    info.size, info.mode = member.size, 0o644
    header = info.tobuf(tarfile.PAX_FORMAT)
    yield Piece(len(header), header)
    if isinstance(member.source, Path):
        file = stack.enter_context(os.fdopen(os.open(member.source, os.O_RDONLY | os.O_NOFOLLOW), "rb"))
        if os.fstat(file.fileno()).st_size < member.size:
            raise JobNotFound("this was replaced a moment ago; ask again")
        yield Piece(member.size, file)
    else:
        yield Piece(member.size, member.source)
    padding = bytes(-member.size % tarfile.BLOCKSIZE)
    yield Piece(len(padding), padding)
