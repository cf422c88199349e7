"""A look at the folders of the service: whether they can be written, how much they still take, and what they lie on."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy.engine import make_url

from jobs.diagnosis import Finding, failure, good, warning
from jobs.settings import DomainSettings

_LEAST_BYTES = 1 << 30
_COMFORTABLE_BYTES = 10 << 30
_CHECKPOINTS_AHEAD = 2
"""A run writes a checkpoint before it deletes an older one."""
_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "ceph", "glusterfs", "lustre"})


def look_at_places(settings: DomainSettings, *, checkpoint_bytes: int = 0) -> Iterator[Finding]:
    """Findings about home, runs, datasets and model roots.

    Args:
        checkpoint_bytes: what the newest checkpoints of the jobs that run now take together.
    """
    for name, folder in (("home", settings.home), ("runs", settings.runs_dir), ("datasets", settings.datasets_dir)):
        yield _writable(name, folder)
    yield _space(_existing(settings.runs_dir), checkpoint_bytes)
    for root in settings.model_roots:
        if not root.is_dir():
            yield warning(
                "models", f"the model root {root} is no folder", "create it, or take it out of PPO_MODEL_ROOTS"
            )
    yield from _database_file(settings)


def judge_space(place: Path, *, free_bytes: int, free_files: int | None, checkpoint_bytes: int) -> Finding:
    """What the free space means for the runs; `free_files` is None where the file system has no such limit."""
    needed = max(_LEAST_BYTES, _CHECKPOINTS_AHEAD * checkpoint_bytes)
    text = f"{gigabytes(free_bytes)} free at {place}"
    advice = "make room: `python -m jobs.admin prune --older-than 30d --dry-run` lists what ended jobs hold"
    if free_files is not None and free_files < 10_000:
        return failure("disk", f"only {free_files} more files fit at {place}", advice)
    if free_bytes < needed:
        return failure("disk", f"{text}; the jobs that run need {gigabytes(needed)}", advice)
    if free_bytes < max(_COMFORTABLE_BYTES, 2 * needed):
        return warning("disk", text, advice)
    return good("disk", text)


def gigabytes(size_bytes: int) -> str:
    """A size for people."""
    return f"{size_bytes / 1e9:.1f} GB"


def _space(place: Path, checkpoint_bytes: int) -> Finding:
    try:
        found = os.statvfs(place)
    except OSError as error:
        return failure("disk", f"{place} cannot be looked at: {error.strerror}", "check the mount and its rights")
    files = found.f_favail if found.f_files else None
    free = found.f_bavail * found.f_frsize
    return judge_space(place, free_bytes=free, free_files=files, checkpoint_bytes=checkpoint_bytes)


def _writable(name: str, folder: Path) -> Finding:
    there = _existing(folder)
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        reason = error.strerror or type(error).__name__
        return failure(name, f"{there} cannot be written: {reason}", "give the service's user the right to write there")
    if there != folder:
        return good(name, f"{folder} does not exist yet, and can be made")
    return good(name, f"{folder} can be written")


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next(place for place in (folder, *folder.parents) if place.exists())


def _database_file(settings: DomainSettings) -> Iterator[Finding]:
    url = make_url(settings.database_url)
    if url.get_backend_name() != "sqlite":
        return
    kind = _file_system(Path(str(url.database)).absolute())
    if kind in _NETWORK:
        text = f"the SQLite file lies on a network file system ({kind}), whose locks cannot be relied on"
        yield failure("database", text, "move it to a local disk, or use Postgres")


def _file_system(path: Path) -> str | None:
    """The kind of file system under `path`, where Linux says so."""
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return None
    over = [(len(Path(mount[1]).parts), mount[2]) for mount in mounts if path.is_relative_to(mount[1])]
    return max(over)[1] if over else None
