"""The cache of the hub: `datasets--owner--name` holds snapshots of a dataset, whose files are links into `blobs`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ppo_engine.datasets.faults import unknown, unusable
from ppo_engine.sources import SourceError, open_file, resolve

_MAX_REF_BYTES = 256


def below(folder: Path, name: str, roots: Sequence[Path]) -> Path:
    """Where a file or folder in `folder` really is: links may lead about, but not out of the roots.

    Raises:
        FolderUnusable: there is none, or it is elsewhere.
    """
    whole = folder / name
    if whole.is_symlink() and not whole.exists():
        raise unusable(f"`{name}` is a link to nothing: was the dataset downloaded completely?")
    try:
        return resolve(str(whole), roots)
    except SourceError as error:
        raise unusable(f"`{name}` leads out of the roots of this service") from error


def snapshot(folder: Path, revision: str | None, roots: Sequence[Path]) -> Path:
    """The folder with the files: a snapshot of a folder of the cache, or else `folder` itself.

    Raises:
        FolderUnusable: no such revision, or several snapshots and nothing says which; or it leads out of the roots.
    """
    if not (folder.name.startswith("datasets--") and (folder / "snapshots").is_dir()):
        if revision is not None:
            raise unusable("is for a folder of the hub's cache, `datasets--owner--name`", part="revision")
        return folder
    inside = below(folder, "snapshots", roots)
    there = sorted(entry.name for entry in inside.iterdir() if entry.is_dir())
    commit = _commit(folder, revision or "main", roots)
    if commit not in there and revision is None and len(there) == 1:
        commit = there[0]
    if commit not in there:
        raise unknown("revision", "revision", revision or "main", there)
    return below(inside, commit, roots)


def _commit(folder: Path, revision: str, roots: Sequence[Path]) -> str:
    """The commit that a branch or tag is at; a commit itself is its own name."""
    name = f"refs/{revision}"
    if not (folder / name).is_file():
        return revision
    with open_file(below(folder, name, roots)) as file:
        return file.read(_MAX_REF_BYTES).decode("utf-8", "replace").strip()
