"""What a job has left behind: events, metrics, a checkpoint, logs. Reads only, scoped to the owner.

Lists for clients come by page: `jobs.progress_pages`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.orm import Session

from jobs.auth import Principal
from jobs.db import Database
from jobs.errors import InvalidArgument, JobNotFound, Problem
from jobs.problems import nearest
from jobs.tables import Job, JobCheckpoint, JobEvent, JobMetrics
from jobs.views import CheckpointView, JobEventView, LogsView, MetricsView
from ppo_engine.rundir import RunDir
from ppo_engine.stats import SCALARS, scalar_metric

_STEPS_NAMED = 10
_LOG_BYTES_PER_LINE = 512
_MAX_LOG_BYTES = 8 * 1024 * 1024


def owned(session: Session, principal: Principal, job_id: str, *, lock: bool = False) -> Job:
    """The job, if it is the principal's own; raises JobNotFound otherwise, whether it exists or not."""
    query = sa.select(Job).where(Job.id == job_id, Job.owner_id == principal.owner_id)
    job = session.scalar(query.with_for_update() if lock else query)
    if job is None:
        raise JobNotFound("there is no such job")
    return job


def events(
    db: Database, principal: Principal, job_id: str, *, after_seq: int = 0, limit: int = 1000
) -> list[JobEventView]:
    """Events after `after_seq`, oldest first."""
    check_range("after_seq", after_seq, 0, 2**62)
    check_range("limit", limit, 1, 10_000)
    query = sa.select(JobEvent).where(JobEvent.job_id == job_id, JobEvent.seq > after_seq)
    with db.read() as session:
        owned(session, principal, job_id)
        return [_event_view(row) for row in session.scalars(query.order_by(JobEvent.seq).limit(limit))]


def _event_view(row: JobEvent) -> JobEventView:
    return JobEventView(
        seq=row.seq,
        time=row.time,
        type=row.type,
        state=row.state,
        attempt=row.attempt,
        message=row.message,
        data=row.data,
    )


# --- metrics ------------------------------------------------------------------------------------------------------


def metrics(
    db: Database,
    principal: Principal,
    job_id: str,
    *,
    keys: Sequence[str] = (),
    from_step: int = 0,
    max_points: int = 1000,
) -> MetricsView:
    """Metrics as columns; every n-th step and the last where there are more than `max_points` steps."""
    check_range("from_step", from_step, 0, 2**62)
    check_range("max_points", max_points, 2, 10_000)
    _check_keys(keys)
    with db.read() as session:
        owned(session, principal, job_id)
        stride, last = _stride(session, job_id, from_step, max_points)
        chosen = sa.or_((JobMetrics.step - from_step) % stride == 0, JobMetrics.step == last)
        query = sa.select(JobMetrics).where(JobMetrics.job_id == job_id, JobMetrics.step >= from_step, chosen)
        rows = list(session.scalars(query.order_by(JobMetrics.step)))
    wanted = keys or sorted({key for row in rows for key in row.scalars})
    return MetricsView(
        job_id=job_id,
        steps=[row.step for row in rows],
        times=[row.time for row in rows],
        series={key: [row.scalars.get(key) for row in rows] for key in wanted},
        downsampled=stride > 1,
    )


def _stride(session: Session, job_id: str, from_step: int, max_points: int) -> tuple[int, int]:
    """Distance of the steps to show, and the last step there is."""
    found = sa.select(sa.func.count(), sa.func.coalesce(sa.func.max(JobMetrics.step), 0))
    count, last = session.execute(found.where(JobMetrics.job_id == job_id, JobMetrics.step >= from_step)).one()
    # The last step is always shown, so one of the points is taken already.
    return (1 if count <= max_points else -(-(last - from_step + 1) // (max_points - 1))), last


def _check_keys(keys: Sequence[str]) -> None:
    problems = [
        Problem(pointer="/keys", code="unknown_metric", detail="no such metric", given=key[:128], suggestion=close)
        for key in keys
        if scalar_metric(key) is None
        for close in [nearest(key[:128], SCALARS)]
    ]
    if problems:
        meant = f"; did you mean `{problems[0].suggestion}`?" if problems[0].suggestion else ""
        raise InvalidArgument(f"there is no metric `{problems[0].given}`{meant}", problems=problems)


# --- checkpoints ----------------------------------------------------------------------------------------------------


def checkpoint_view(row: JobCheckpoint) -> CheckpointView:
    """A checkpoint for its owner."""
    return CheckpointView(
        step=row.step,
        attempt=row.attempt,
        size_bytes=row.size_bytes,
        sha256=row.sha256,
        score=row.score,
        create_time=row.create_time,
        links={"archive": f"/v1/jobs/{row.job_id}/checkpoints/{row.step}/archive"},
    )


def checkpoint(db: Database, principal: Principal, job_id: str, step: int) -> CheckpointView:
    """One checkpoint; raises JobNotFound if it is not kept."""
    with db.read() as session:
        owned(session, principal, job_id)
        return checkpoint_view(_kept(session, job_id, step))


def checkpoint_dir(db: Database, principal: Principal, job_id: str, step: int, runs_dir: Path) -> Path:
    """The folder of a checkpoint; raises JobNotFound if it is not kept."""
    with db.read() as session:
        owned(session, principal, job_id)
        run = runs_dir / job_id
        folder = run / _kept(session, job_id, step).path
    # The engine named it, and may be anybody's plugin: nothing but a folder of this run is handed out.
    if not folder.is_dir() or not folder.resolve().is_relative_to(run.resolve()):
        raise JobNotFound(f"the job keeps no checkpoint of step {step}")
    return folder


def _kept(session: Session, job_id: str, step: int) -> JobCheckpoint:
    row = session.get(JobCheckpoint, (job_id, step)) if 0 <= step < 2**63 else None
    if row is None:
        raise no_checkpoint(session, job_id, f"of step {step}")
    return row


def no_checkpoint(session: Session, job_id: str, wanted: str) -> JobNotFound:
    """The refusal of a checkpoint that is not there; it names the newest steps that have one."""
    steps = sa.select(JobCheckpoint.step).where(JobCheckpoint.job_id == job_id).order_by(JobCheckpoint.step.desc())
    kept = sorted(session.scalars(steps.limit(_STEPS_NAMED)))
    have = f"it keeps {', '.join(map(str, kept))}" if kept else "it keeps none"
    return JobNotFound(f"the job keeps no checkpoint {wanted}; {have}")


# --- logs ---------------------------------------------------------------------------------------------------------


def logs(
    db: Database, principal: Principal, job_id: str, runs_dir: Path, *, tail: int = 200, attempt: int | None = None
) -> LogsView:
    """The last `tail` lines of an attempt's log, by default the newest attempt's."""
    check_range("tail", tail, 1, 10_000)
    with db.read() as session:
        newest = owned(session, principal, job_id).attempt
    if attempt is not None:
        check_range("attempt", attempt, 1, max(newest, 1))
    number = newest if attempt is None else attempt
    lines, truncated = _tail(RunDir(runs_dir / job_id).log(number), tail)
    return LogsView(attempt=number, lines=lines, truncated=truncated)


def _tail(path: Path, count: int) -> tuple[list[str], bool]:
    """The last lines of a file, and whether there are more before them."""
    if not path.is_file() or path.is_symlink():
        return [], False
    window = min(count * _LOG_BYTES_PER_LINE, _MAX_LOG_BYTES)
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - window))
        text = file.read(window).decode("utf-8", "replace")
    lines = text.splitlines()
    if size > window:
        lines = lines[1:]  # the first one is most likely cut
    return lines[-count:], size > window or len(lines) > count


def check_range(name: str, value: int, low: int, high: int) -> None:
    """Raise InvalidArgument unless low <= value <= high."""
    if not low <= value <= high:
        problem = Problem(
            pointer=f"/{name}", code="out_of_range", detail=f"must be from {low} to {high}", given=str(value)[:32]
        )
        raise InvalidArgument(f"{name} must be from {low} to {high}", problems=[problem])
