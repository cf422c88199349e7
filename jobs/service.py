"""What the front door may do: every function is one transaction, scoped to the principal, and raises JobsError."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from jobs import audit
from jobs.attempts import attempts
from jobs.auth import Principal
from jobs.dataset_use import dataset_problems, hold_datasets
from jobs.db import Database
from jobs.errors import IdempotencyConflict, InvalidArgument
from jobs.fleet import LiveJob, WorkerRow, count_by_state, live_metrics, queue_ages, workers
from jobs.health import health
from jobs.history import (
    check_range,
    checkpoint,
    checkpoint_dir,
    events,
    logs,
    metrics,
    owned,
)
from jobs.ids import sortable_id
from jobs.inheriting import pin
from jobs.job_list import newest_jobs
from jobs.job_view import job_view, job_views
from jobs.lineage import Lineage
from jobs.paging import id_before, token_behind
from jobs.progress_pages import checkpoints, events_page, samples
from jobs.quotas import NO_LIMITS, Limits, check_queued
from jobs.reach import Reach, host_problems
from jobs.sources import check_sources
from jobs.spec import JobSpec, spec_hash
from jobs.states import JobState
from jobs.tables import Job, JobLabel
from jobs.transition import enter
from jobs.updating import update
from jobs.verbs import cancel, pause, resume, stop
from jobs.views import JobView, Page
from jobs.webhooks import enlist

__all__ = [
    "LiveJob",
    "WorkerRow",
    "attempts",
    "cancel",
    "checkpoint",
    "checkpoint_dir",
    "checkpoints",
    "count_by_state",
    "events",
    "events_page",
    "get",
    "health",
    "list_jobs",
    "live_metrics",
    "logs",
    "metrics",
    "pause",
    "queue_ages",
    "resume",
    "samples",
    "stop",
    "submit",
    "update",
    "workers",
]

MAX_PAGE_SIZE = 500
_JOB_ID = re.compile(r"job_[0-9a-hjkmnp-tv-z]{26}")
_LABEL = sa.insert(JobLabel.__table__)  # type: ignore[arg-type]
_REQUEST_ID = re.compile(r"[!-~]{1,255}")


# --- submit -------------------------------------------------------------------------------------------------------


def submit(
    db: Database,
    principal: Principal,
    spec: JobSpec,
    *,
    roots: Sequence[Path],
    request_id: str | None = None,
    limits: Limits = NO_LIMITS,
    lineage: Lineage | None = None,
    reach: Reach | None = None,
) -> tuple[JobView, bool]:
    """Accept a job; the flag says whether it was created now or by an earlier request with this `request_id`.

    Raises:
        InvalidSpec: a path in the spec is not under `roots`, a host beyond `reach`, or a dataset not there or not fit.
        IdempotencyConflict: `request_id` came with another spec before, or for another parent.
        JobNotFound: the parent's checkpoint was given up a moment ago.
        QuotaExceeded: the owner has as many queued jobs as allowed.
    """
    if request_id is not None and not _REQUEST_ID.fullmatch(request_id):
        raise InvalidArgument("an idempotency key is 1 to 255 visible ASCII characters")
    earlier = _earlier(db, principal, spec, request_id, lineage)
    if earlier is not None:
        return earlier, False
    hosts = [] if reach is None else host_problems(spec, reach)
    check_sources(spec, roots, [*dataset_problems(db, principal, spec), *hosts])
    try:
        return _create(db, principal, spec, request_id, limits, lineage), True
    except IntegrityError:
        earlier = _earlier(db, principal, spec, request_id, lineage)  # a twin of this request was faster
        if earlier is None:
            raise
        return earlier, False


def _earlier(
    db: Database, principal: Principal, spec: JobSpec, request_id: str | None, lineage: Lineage | None
) -> JobView | None:
    if request_id is None:
        return None
    query = sa.select(Job).where(Job.owner_id == principal.owner_id, Job.request_id == request_id)
    with db.read() as session:
        job = session.scalar(query)
        if job is None:
            return None
        if job.spec_hash != spec_hash(spec) or job.parent_job_id != (lineage and lineage.job_id):
            raise IdempotencyConflict("this idempotency key was used with another spec; use a new key for a new job")
        return job_view(session, job)


def _create(
    db: Database,
    principal: Principal,
    spec: JobSpec,
    request_id: str | None,
    limits: Limits,
    lineage: Lineage | None,
) -> JobView:
    row = {
        "id": sortable_id("job"),
        "owner_id": principal.owner_id,
        "request_id": request_id,
        "name": spec.name,
        "spec": spec.document(),
        "spec_hash": spec_hash(spec),
        "queue": spec.resources.queue,
        "rank": -spec.resources.priority,
        "max_attempts": spec.retry.max_attempts,
        "steps_total": spec.ppo.steps,
        **(lineage.row() if lineage is not None else {}),
    }
    with db.transaction() as session:
        if lineage is not None:
            pin(session, principal, lineage)
        enlist(session, principal, spec)
        job = enter(session, row)
        labels = [{"job_id": job.id, "key": key, "value": value} for key, value in spec.labels.items()]
        if labels:
            session.execute(_LABEL, labels)
        hold_datasets(session, principal, job.id, spec)
        _record(session, principal, job.id, lineage)
        check_queued(session, job.owner_id, limits)
        return job_view(session, job)


def _record(session: Session, principal: Principal, job_id: str, lineage: Lineage | None) -> None:
    if lineage is None:
        audit.record(session, principal, "job.submit", job_id)
    elif lineage.step is None:
        audit.record(session, principal, "job.retry", job_id, parent=lineage.job_id)
    else:
        audit.record(session, principal, "job.fork", job_id, parent=lineage.job_id, step=lineage.step)


# --- read ---------------------------------------------------------------------------------------------------------


def get(db: Database, principal: Principal, job_id: str) -> JobView:
    """One job; raises JobNotFound."""
    with db.read() as session:
        return job_view(session, owned(session, principal, job_id))


def list_jobs(
    db: Database,
    principal: Principal,
    *,
    states: Sequence[JobState] = (),
    labels: Mapping[str, str] = {},
    page_size: int = 50,
    page_token: str | None = None,
) -> Page[JobView]:
    """A page of the principal's jobs, newest first; a larger `page_size` than MAX_PAGE_SIZE is cut to it."""
    check_range("page_size", page_size, 1, 2**31)
    size = min(page_size, MAX_PAGE_SIZE)
    before = None if page_token is None else id_before(page_token, _JOB_ID)
    query = newest_jobs(principal.owner_id, states, labels, before, size + 1)
    with db.read() as session:
        rows = list(session.scalars(query))
        token = token_behind(rows[size - 1].id) if len(rows) > size else None
        return Page[JobView](items=job_views(session, rows[:size]), next_page_token=token)
