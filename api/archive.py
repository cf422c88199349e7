"""A checkpoint's folder as a tar stream of known length.

All files are opened before the first byte goes out: retention may delete the folder meanwhile, and the stream still
ends whole. Members are named as in the manifest, so whoever has the checkpoint's digest can check every byte.
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
from jobs.errors import JobNotFound

_CHUNK_BYTES = 1 << 20
_END = bytes(2 * tarfile.BLOCKSIZE)


@dataclass(frozen=True, slots=True)
class Member:
    """One open file and its tar header."""

    header: bytes
    file: BinaryIO
    size: int

    @property
    def padding(self) -> int:
        return -self.size % tarfile.BLOCKSIZE


@dataclass(frozen=True, slots=True)
class Archive:
    """Open files; `chunks` sends and closes them."""

    members: list[Member]
    files: ExitStack

    @property
    def size(self) -> int:
        """Length of the tar, bytes."""
        return sum(len(member.header) + member.size + member.padding for member in self.members) + len(_END)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The tar, piece by piece; the files are closed at the end or when the reader leaves."""
        with self.files:
            for member in self.members:
                yield member.header
                left = member.size
                while left:
                    chunk = await in_thread(member.file.read, min(left, _CHUNK_BYTES))
                    if not chunk:
                        raise OSError("a checkpoint file became shorter while it was sent")
                    left -= len(chunk)
                    yield chunk
                yield bytes(member.padding)
            yield _END


def open_archive(folder: Path) -> Archive:
    """Open every regular file under `folder`; links are left out.

    Raises:
        JobNotFound: the folder is gone.
    """
    with ExitStack() as stack:
        try:
            members = [_open(path, folder, stack) for path in _files(folder)]
        except FileNotFoundError as error:
            raise JobNotFound("this checkpoint is no longer kept") from error
        if not members:
            raise JobNotFound("this checkpoint is no longer kept")
        return Archive(members, stack.pop_all())


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield path


def _open(path: Path, folder: Path, stack: ExitStack) -> Member:
    file = stack.enter_context(path.open("rb"))
    info = tarfile.TarInfo(path.relative_to(folder).as_posix())
    info.size, info.mode = os.fstat(file.fileno()).st_size, 0o644
    return Member(info.tobuf(tarfile.PAX_FORMAT), file, info.size)
