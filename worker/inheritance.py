"""Puts the checkpoint that a forked run begins with into its folder: linked, or copied to another file system."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from jobs.lineage import Inherited
from ppo_engine.inheritance import ATTEMPT
from ppo_engine.rundir import MANIFEST, PARTIAL_PREFIX, RunDir


class Gone(Exception):
    """The checkpoint is not there any more as it was when the fork was accepted."""


def take_over(source: RunDir, run_dir: RunDir, what: Inherited) -> tuple[str, int]:
    """Link a checkpoint of another run; durable on return. Checkpoints never change, so both may share their files.

    Returns:
        The folder, relative to the run directory, and its bytes.

    Raises:
        Gone: it was given up or written anew, as after a rollback.
        OSError: no space, or no permission.
    """
    folder, final = source.root / what.path, run_dir.checkpoint(what.begins_at, ATTEMPT)
    partial = final.with_name(f"{PARTIAL_PREFIX}{final.name}")
    for left in (partial, final):
        shutil.rmtree(left, ignore_errors=True)
    try:
        size = _linked(folder, partial)
        digest = hashlib.sha256((partial / MANIFEST).read_bytes()).hexdigest()
    except FileNotFoundError as error:
        raise Gone(f"{folder.name} is not there") from error
    if digest != what.sha256:
        raise Gone(f"{folder.name} was written anew")
    for path in [*(path for path in partial.rglob("*") if path.is_dir()), partial]:
        _fsync(path)
    partial.rename(final)
    _fsync(final.parent)
    return str(final.relative_to(run_dir.root)), size


def _linked(folder: Path, target: Path) -> int:
    target.mkdir(parents=True)
    size = 0
    for path in sorted(folder.rglob("*")):
        place = target / path.relative_to(folder)
        if path.is_dir():
            place.mkdir()
            continue
        try:
            place.hardlink_to(path)
        except FileNotFoundError:
            raise
        except OSError:  # another file system, or files of another user
            shutil.copyfile(path, place)
            _fsync(place)
        size += place.stat().st_size
    return size


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
