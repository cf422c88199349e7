"""Making room: what old, ended jobs leave on disk, and folders that no job has.

Rows stay, but for checkpoints and samples: a job can still be shown, with its events, its curves and its spec.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.orm import Session

from jobs.checkpoints import point_to_checkpoints
from jobs.clock import db_time
from jobs.db import Database
from jobs.lineage import pinned_steps
from jobs.states import TERMINAL
from jobs.tables import Errand, Job, JobCheckpoint, JobSample
from ppo_engine.rundir import RunDir

ORPHAN_SECONDS = 86_400.0
"""A folder without a job is left alone for at least this long: its job may be about to be stored, or restored."""
_JOBS_AT_ONCE = 200
_STEPS_AT_ONCE = 200
_TRASH = ".trash-"
_RUN = re.compile(r"^(?:\.trash-)?(job_[0-9a-z]{26})$")
_BIG = ("samples.jsonl", "converted", "exports", "inspection")
"""What a run leaves besides its checkpoints and logs that takes room and shows nothing that the rows do not."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Surplus:
    """Something that was removed, or would be."""

    job_id: str
    what: str
    """A path relative to the run directory, `.` for all of it, or `rows of samples`."""
    size_bytes: int
    """0 for rows."""


@dataclass(frozen=True)
class Retention:
    """What is kept, and whether anything is done at all."""

    older_seconds: float
    """Since the end of a job; since the last change of a folder without one."""
    keep_best: bool = False
    """Keep the best checkpoint of each job, or its last where none has a score."""
    dry_run: bool = False
    """Find, and change nothing."""


def prune(db: Database, runs_dir: Path, wanted: Retention) -> Iterator[Surplus]:
    """Remove what `wanted` does not keep, one small transaction a job; yields each thing as it is removed.

    Never touches a job that has not ended, nor a checkpoint that a fork has still to take over or an errand works on.
    Can be interrupted, repeated and run twice at once: what was left is found again.
    """
    for job_id in _ended(db, wanted.older_seconds):
        yield from _prune_job(db, job_id, RunDir(runs_dir / job_id), wanted)
    for folder in _orphans(db, runs_dir, max(wanted.older_seconds, ORPHAN_SECONDS)):
        yield from _taken(folder.name.removeprefix(_TRASH), ".", folder, wanted)


def _ended(db: Database, older_seconds: float) -> Iterator[str]:
    """Ids of jobs that ended so long ago, by page."""
    after = ""
    while True:
        page = sa.select(Job.id, (Job.end_time < db_time(-older_seconds)).label("old")).where(Job.id > after)
        with db.read() as session:
            rows = session.execute(page.order_by(Job.id).limit(_JOBS_AT_ONCE)).all()
        yield from (row.id for row in rows if row.old)
        if not rows:
            return
        after = rows[-1].id


def _prune_job(db: Database, job_id: str, run_dir: RunDir, wanted: Retention) -> Iterator[Surplus]:
    kept = _drop_checkpoints(db, job_id, wanted)
    if kept is None:
        return
    for folder in _children(run_dir.checkpoints):
        if str(folder.relative_to(run_dir.root)) not in kept:
            yield from _taken(job_id, str(folder.relative_to(run_dir.root)), folder, wanted)
    for path in _children(run_dir.root):
        if path.name in _BIG or path.name.startswith(("engine-", _TRASH)):
            yield from _taken(job_id, path.name, path, wanted)
    yield from _drop_samples(db, job_id, wanted)


def _drop_checkpoints(db: Database, job_id: str, wanted: Retention) -> set[str] | None:
    """Forget a job's checkpoints; returns the folders of those that stay, or None to leave the job alone.

    Rows go first: a row never names a folder that is gone. A folder whose removal was missed is found the next time.
    """
    with db.read() if wanted.dry_run else db.transaction() as session:
        # A fork locks this row too before it pins one of its checkpoints.
        job = session.scalar(sa.select(Job).where(Job.id == job_id).with_for_update())
        if job is None or job.state not in TERMINAL or _is_in_use(session, job_id):
            return None
        rows = session.scalars(sa.select(JobCheckpoint).where(JobCheckpoint.job_id == job_id)).all()
        steps = pinned_steps(session, job_id)
        if wanted.keep_best and (best := _best(job)) is not None:
            steps.add(best)
        surplus = [row for row in rows if row.step not in steps]
        kept = {row.path for row in rows if row.step in steps}
        if surplus and not wanted.dry_run:
            for row in surplus:
                session.delete(row)
            session.flush()
            point_to_checkpoints(session, job_id)
        return kept


def _best(job: Job) -> int | None:
    return job.last_checkpoint_step if job.best_checkpoint_step is None else job.best_checkpoint_step


def _is_in_use(session: Session, job_id: str) -> bool:
    """Whether somebody has asked for work on the job's files, such as answers of a checkpoint."""
    asked = session.scalars(sa.select(Errand.request).where(Errand.end_time.is_(None)))
    return any(job_id in json.dumps(request) for request in asked)


def _drop_samples(db: Database, job_id: str, wanted: Retention) -> Iterator[Surplus]:
    """Forget stored responses, some steps at a time."""
    steps = sa.select(JobSample.step).where(JobSample.job_id == job_id).distinct()
    steps = steps.order_by(JobSample.step).limit(_STEPS_AT_ONCE)
    found = False
    while True:
        with db.read() as session:
            some = session.scalars(steps).all()
        if some and not found:
            found = True
            yield Surplus(job_id, "rows of samples", 0)
        if not some or wanted.dry_run:
            return
        with db.transaction() as session:
            these = JobSample.job_id == job_id, JobSample.step <= some[-1]
            session.execute(sa.delete(JobSample).where(*these))


def _orphans(db: Database, runs_dir: Path, older_seconds: float) -> Iterator[Path]:
    """Folders with the name of a job that the database does not have, unchanged for that long."""
    old = time.time() - older_seconds
    named = {
        path: found[1] for path in _children(runs_dir) if (found := _RUN.match(path.name)) and _changed(path) < old
    }
    with db.read() as session:
        if session.scalar(sa.select(Job.id).limit(1)) is None:
            return  # more likely the wrong database than one that forgot every job
    for path, job_id in named.items():
        with db.read() as session:
            known = session.scalar(sa.select(Job.id).where(Job.id == job_id))
        if known is None:
            yield path


def _children(folder: Path) -> list[Path]:
    """What lies in a folder itself, in order; nothing where the folder is a link, which could lead anywhere."""
    try:
        return [] if folder.is_symlink() else sorted(folder.iterdir())
    except OSError:
        return []


def _changed(folder: Path) -> float:
    """When anything directly in a folder last changed, by this machine's clock."""
    times = [0.0]
    for path in (folder, *_children(folder)):
        try:
            times.append(path.lstat().st_mtime)
        except OSError:
            continue  # gone meanwhile
    return max(times)


def _taken(job_id: str, what: str, path: Path, wanted: Retention) -> Iterator[Surplus]:
    found = Surplus(job_id, what, _size_bytes(path))
    if wanted.dry_run or _remove(path):
        yield found


def _size_bytes(path: Path) -> int:
    """Of a file, or of all files of a folder; what a fork shares through links counts in both runs."""
    total = 0
    for place in (path, *(path.rglob("*") if path.is_dir() and not path.is_symlink() else ())):
        try:
            status = place.lstat()
        except OSError:
            continue
        total += 0 if place.is_dir() else status.st_size
    return total


def _remove(path: Path) -> bool:
    """Delete a file, a link itself, or a folder, which loses its name first: half of one must not look whole."""
    try:
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)
            return True
        aside = path if path.name.startswith(_TRASH) else path.with_name(_TRASH + path.name)
        if aside != path:
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)
        shutil.rmtree(aside)
    except FileNotFoundError:
        return False  # somebody else was faster
    except OSError as error:
        log.warning("cannot remove %s: %s", path, error.strerror or error)
        return False
    return True
