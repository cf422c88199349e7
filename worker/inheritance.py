"""Puts the checkpoint that a forked run begins with into its folder: linked, or copied to another file system."""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

from jobs.lineage import Inherited
from ppo_engine.inheritance import ATTEMPT
from ppo_engine.rundir import MANIFEST, PARTIAL_PREFIX, RunDir

log = logging.getLogger(__name__)


class Gone(Exception):
    """The checkpoint is not there any more as it was when the fork was accepted."""


def take_over(source: RunDir, run_dir: RunDir, what: Inherited) -> tuple[str, int]:
    """Link a checkpoint of another run; durable on return. Checkpoints never change, so both may share their files.

    One that was handed over before, see `hand_over`, needs the other run no more.

    Returns:
        The folder, relative to the run directory, and its bytes.

    Raises:
        Gone: it was given up or written anew, as after a rollback.
        OSError: no space, or no permission.
    """
    folder, final = source.root / what.path, run_dir.checkpoint(what.begins_at, ATTEMPT)
    if not _is(final, what.sha256):
        # Of one's own: the worker of the other run may hand the same checkpoint over at this moment.
        partial = final.with_name(f"{PARTIAL_PREFIX}{final.name}-{secrets.token_hex(4)}")
        try:
            _put(folder, partial, final, what.sha256)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    size = sum(path.stat().st_size for path in final.rglob("*") if path.is_file())
    return str(final.relative_to(run_dir.root)), size


def hand_over(run_dir: RunDir, forks: Mapping[str, Inherited]) -> None:
    """Give forks that have not begun, by their ids, what this run is about to delete.

    One that comes away empty, say because the disk is full, fails at its first attempt and says so.
    """
    for job_id, what in forks.items():
        try:
            take_over(run_dir, RunDir(run_dir.root.with_name(job_id)), what)
        except (Gone, OSError) as error:
            log.warning("the checkpoint of step %d cannot be given to %s: %s", what.step, job_id, error)


def _put(folder: Path, partial: Path, final: Path, sha256: str) -> None:
    try:
        _link(folder, partial)
    except FileNotFoundError as error:
        raise Gone(f"{folder.name} is not there") from error
    if not _is(partial, sha256):
        raise Gone(f"{folder.name} was written anew")
    for path in [*(path for path in partial.rglob("*") if path.is_dir()), partial]:
        _fsync(path)
    try:
        partial.rename(final)
    except OSError:
        if not _is(final, sha256):  # else somebody was faster, with the same
            shutil.rmtree(final, ignore_errors=True)
            partial.rename(final)
    _fsync(final.parent)


def _is(folder: Path, sha256: str) -> bool:
    """Whether a checkpoint lies there, whole: its manifest has this digest."""
    try:
        return hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest() == sha256
    except OSError:
        return False


def _link(folder: Path, target: Path) -> None:
    target.mkdir(parents=True)
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


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
