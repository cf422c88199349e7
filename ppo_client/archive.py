"""Unpacks a checkpoint's tar stream, trusting nothing in it until the digests match.

The checkpoint's sha256 is that of `manifest.json`; the manifest holds size and sha256 of every other file. Members are
written one by one as they come, into a folder beside the target that takes the target's name only when all is verified.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from pydantic import BaseModel, ConfigDict, ValidationError

from ppo_client.errors import DownloadError

_BLOCK_BYTES = 1 << 20


class FileEntry(BaseModel):
    """Size and digest of one file."""

    model_config = ConfigDict(extra="ignore")

    size: int
    sha256: str


class Manifest(BaseModel):
    """The part of a checkpoint's manifest that a download needs."""

    model_config = ConfigDict(extra="ignore")

    files: dict[str, FileEntry]


def unpack(chunks: Iterable[bytes], target: Path, *, sha256: str) -> None:
    """Write the archive's files under `target`, which must not exist yet.

    Raises:
        DownloadError: unsafe member, damaged or missing file; `target` is not created.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        verify(_extract(chunks, partial), partial, sha256=sha256)
        partial.chmod(0o755)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def verify(digests: dict[str, FileEntry], folder: Path, *, sha256: str) -> None:
    """Compare what arrived with the manifest, and the manifest with the checkpoint's digest.

    Raises:
        DownloadError: any difference; the message names the files.
    """
    arrived = dict(digests)
    manifest_entry = arrived.pop("manifest.json", None)
    if manifest_entry is None:
        raise DownloadError("the archive has no manifest.json")
    if manifest_entry.sha256 != sha256:
        raise DownloadError(f"manifest.json has digest {manifest_entry.sha256}, the checkpoint says {sha256}")
    try:
        wanted = Manifest.model_validate_json((folder / "manifest.json").read_bytes()).files
    except ValidationError as error:
        raise DownloadError(f"manifest.json is not readable: {error}") from error
    wrong = sorted(name for name in wanted.keys() | arrived.keys() if wanted.get(name) != arrived.get(name))
    if wrong:
        raise DownloadError(f"files missing, unexpected or damaged: {', '.join(wrong)}")


def _extract(chunks: Iterable[bytes], folder: Path) -> dict[str, FileEntry]:
    found: dict[str, FileEntry] = {}
    try:
        with tarfile.open(fileobj=_Reader(iter(chunks)), mode="r|") as archive:  # never unpacked: it comes as it is
            for member in archive:
                if member.isdir():
                    continue
                name = _safe_name(member)
                source = archive.extractfile(member)
                if source is None:
                    raise DownloadError(f"`{member.name}` has no content")
                found[name] = _write(source, folder / name)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise DownloadError(f"the archive cannot be read or written: {error}") from error
    return found


def _safe_name(member: tarfile.TarInfo) -> str:
    path = PurePosixPath(member.name)
    parts = [part for part in path.parts if part != "."]
    # A sparse file of 512 bytes here may be a terabyte of zeros there.
    odd = not member.isfile() or member.issparse()
    if odd or path.is_absolute() or ".." in parts or not parts or "\\" in member.name:
        raise DownloadError(f"the archive holds `{member.name}`, which is not a plain file inside the checkpoint")
    return "/".join(parts)


def _write(source: IO[bytes], path: Path) -> FileEntry:
    digest, size = hashlib.sha256(), 0
    path.parent.mkdir(parents=True, exist_ok=True)
    # "xb": a member that comes twice is refused.
    with path.open("xb") as file:
        while block := source.read(_BLOCK_BYTES):
            digest.update(block)
            size += file.write(block)
    return FileEntry(size=size, sha256=digest.hexdigest())


class _Reader(io.RawIOBase):
    """A file over an iterator of byte chunks, as tarfile's stream mode wants it."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        super().__init__()
        self._chunks = chunks
        self._rest = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        parts, wanted = [self._rest], size - len(self._rest)
        while wanted > 0 and (chunk := next(self._chunks, None)) is not None:
            parts.append(chunk)
            wanted -= len(chunk)
        data = b"".join(parts)
        self._rest = data[size:]
        return data[:size]
