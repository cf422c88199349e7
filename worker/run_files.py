"""What the worker does in a run's directory: puts the spec there, takes away checkpoints that nobody keeps."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
import shutil
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from ppo_engine.config import TrainConfig
from ppo_engine.rundir import MANIFEST, PARTIAL_PREFIX, RunDir

log = logging.getLogger(__name__)

_TRASH = ".trash-"
_CORRUPT = ".corrupt-"
_STEP_AND_ATTEMPT = re.compile(r"step-\d{8}-(\d+)")


def prepare(run_dir: RunDir, config: TrainConfig, *, attempt: int, kept: Collection[str]) -> None:
    """Create the directory with `spec.json` in it, and clear away what a crash left; raises OSError.

    Only what attempts before this one left: a worker that was stopped on its way here, past its lease, comes after
    another attempt has begun or even ended, and knows none of its checkpoints.

    Args:
        kept: the checkpoint folders that the database knows. Others were never announced, or were to be deleted.
    """
    run_dir.checkpoints.mkdir(parents=True, exist_ok=True)
    left = [path for path in run_dir.checkpoints.iterdir() if _attempt_of(path.name) < attempt]
    for path in left:
        if path.name.startswith((_TRASH, PARTIAL_PREFIX)):
            shutil.rmtree(path, ignore_errors=True)
    found = (str(path.relative_to(run_dir.root)) for path in run_dir.saved_checkpoints() if path in left)
    delete_checkpoints(run_dir, [folder for folder in found if folder not in kept])
    text = json.dumps(config.model_dump(mode="json"), sort_keys=True, ensure_ascii=False, indent=1)
    _write_atomically(run_dir.spec, text.encode())


def _attempt_of(name: str) -> float:
    """Which attempt made a checkpoint, whole or not; of what is none, after all of them."""
    match = _STEP_AND_ATTEMPT.search(name)
    return math.inf if match is None else int(match[1])


def delete_checkpoints(run_dir: RunDir, folders: Iterable[str]) -> None:
    """Delete checkpoint folders, given relative to the run directory. A crash midway leaves no half checkpoint."""
    for folder in folders:
        trash = _move_aside(run_dir, folder, _TRASH)
        if trash is not None:
            shutil.rmtree(trash, ignore_errors=True)


def unchanged(run_dir: RunDir, digests: Mapping[str, str]) -> list[str]:
    """Those of some checkpoint folders whose manifest still has the digest given with them.

    After a rollback a run writes the same steps again, under the same names, and may be faster than the database.
    """
    return [folder for folder, digest in digests.items() if _digest(run_dir.root / folder / MANIFEST) == digest]


def _digest(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def quarantine_checkpoint(run_dir: RunDir, folder: str) -> None:
    """Set a damaged checkpoint aside, where nothing resumes from it and a person can look at it."""
    _move_aside(run_dir, folder, _CORRUPT)


def _move_aside(run_dir: RunDir, folder: str, prefix: str) -> Path | None:
    path = run_dir.root / folder
    # Only ever a real folder directly in `checkpoints`: a row must not be able to name anything else.
    inside = path.parent.resolve() == run_dir.checkpoints.resolve() and path.name not in ("", ".", "..")
    if not inside or path.is_symlink() or not path.is_dir():
        log.warning("left alone, not a checkpoint of this run: %s", folder)
        return None
    aside = path.with_name(f"{prefix}{path.name}")
    try:
        shutil.rmtree(aside, ignore_errors=True)
        path.rename(aside)
    except OSError as error:
        log.warning("cannot move %s aside: %s", folder, error)
        return None
    return aside


def _write_atomically(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
