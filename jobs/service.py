"""What the front door may do: every function is one transaction, scoped to the principal, and raises JobsError."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from jobs import audit
from jobs.auth import Principal
from jobs.clock import db_time
from jobs.dataset_use import dataset_problems, hold_datasets
from jobs.db import Database
from jobs.errors import IdempotencyConflict, IllegalTransition, InvalidArgument
from jobs.fleet import LiveJob, WorkerRow, count_by_state, live_metrics, queue_ages, workers
from jobs.history import (
    check_range,
    checkpoint,
    checkpoint_dir,
    checkpoints,
    events,
    logs,
    metrics,
    owned,
    samples,
)
from jobs.ids import sortable_id
from jobs.job_view import job_view, job_views
from jobs.paging import id_before, token_behind
from jobs.quotas import NO_LIMITS, Limits, check_queued
from jobs.reports import CANCEL_REQUESTED
from jobs.sources import check_sources
from jobs.spec import JobSpec, spec_hash
from jobs.states import TERMINAL, JobState, Move, allowed_actions
from jobs.tables import Job, JobLabel
from jobs.transition import Happening, enter, move, note
from jobs.views import JobView, Page
from jobs.webhooks import enlist

__all__ = [
    "LiveJob",
    "WorkerRow",
    "cancel",
    "checkpoint",
    "checkpoint_dir",
    "checkpoints",
    "count_by_state",
    "events",
    "get",
    "list_jobs",
    "live_metrics",
    "logs",
    "metrics",
    "queue_ages",
    "resume",
    "samples",
    "submit",
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
) -> tuple[JobView, bool]:
    """Accept a job; the flag says whether it was created now or by an earlier request with this `request_id`.

    Raises:
        InvalidSpec: a path in the spec is not under `roots`, or a dataset is not there or not fit.
        IdempotencyConflict: `request_id` came with another spec before.
        QuotaExceeded: the owner has as many queued jobs as allowed.
    """
    if request_id is not None and not _REQUEST_ID.fullmatch(request_id):
        raise InvalidArgument("an idempotency key is 1 to 255 visible ASCII characters")
    earlier = _earlier(db, principal, spec, request_id)
    if earlier is not None:
        return earlier, False
    check_sources(spec, roots, dataset_problems(db, principal, spec))
    try:
        return _create(db, principal, spec, request_id, limits), True
    except IntegrityError:
        earlier = _earlier(db, principal, spec, request_id)  # a twin of this request was faster
        if earlier is None:
            raise
        return earlier, False


def _earlier(db: Database, principal: Principal, spec: JobSpec, request_id: str | None) -> JobView | None:
    if request_id is None:
        return None
    query = sa.select(Job).where(Job.owner_id == principal.owner_id, Job.request_id == request_id)
    with db.read() as session:
        job = session.scalar(query)
        if job is None:
            return None
        if job.spec_hash != spec_hash(spec):
            raise IdempotencyConflict("this idempotency key was used with another spec; use a new key for a new job")
        return job_view(session, job)


def _create(db: Database, principal: Principal, spec: JobSpec, request_id: str | None, limits: Limits) -> JobView:
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
    }
    with db.transaction() as session:
        enlist(session, principal, spec)
        job = enter(session, row)
        labels = [{"job_id": job.id, "key": key, "value": value} for key, value in spec.labels.items()]
        if labels:
            session.execute(_LABEL, labels)
        hold_datasets(session, principal, job.id, spec)
        audit.record(session, principal, "job.submit", job.id)
        check_queued(session, job.owner_id, limits)
        return job_view(session, job)


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
    query = sa.select(Job).where(Job.owner_id == principal.owner_id)
    if states:
        query = query.where(Job.state.in_(states))
    for key, value in labels.items():
        found = sa.select(JobLabel.job_id).where(JobLabel.key == key, JobLabel.value == value)
        query = query.where(Job.id.in_(found))
    if page_token is not None:
        query = query.where(Job.id < id_before(page_token, _JOB_ID))
    with db.read() as session:
        rows = list(session.scalars(query.order_by(Job.id.desc()).limit(size + 1)))
        token = token_behind(rows[size - 1].id) if len(rows) > size else None
        return Page[JobView](items=job_views(session, rows[:size]), next_page_token=token)


# --- verbs --------------------------------------------------------------------------------------------------------


def cancel(db: Database, principal: Principal, job_id: str) -> JobView:
    """Cancel a job: at once where it waits, at the end of its step where it runs. Asking twice is fine.

    Raises:
        IllegalTransition: it has already succeeded or failed.
    """
    with db.transaction() as session:
        job = owned(session, principal, job_id, lock=True)
        if job.state in TERMINAL and job.state is not JobState.CANCELLED:
            raise _ended(job)
        seen = job.event_seq
        return _changed(session, principal, "job.cancel", _cancel(session, job), seen)


def resume(db: Database, principal: Principal, job_id: str) -> JobView:
    """Put a paused job back into the queue, to go on from its last checkpoint. Asking twice is fine.

    Raises:
        IllegalTransition: it has ended.
    """
    with db.transaction() as session:
        job = owned(session, principal, job_id, lock=True)
        if job.state in TERMINAL:
            raise _ended(job)
        seen = job.event_seq
        now = {"not_before": db_time(), "next_wake_time": db_time(), "stop_reason": None}
        resumed = move(session, Move.RESUME, [Job.id == job.id], Happening("resumed by its owner"), **now)
        return _changed(session, principal, "job.resume", resumed or job, seen)


def _changed(session: Session, principal: Principal, action: str, job: Job, seen: int) -> JobView:
    """The job after a verb; an entry in the audit log where it has had an event since event `seen`."""
    if job.event_seq > seen:
        audit.record(session, principal, action, job.id)
    return job_view(session, job)


def _ended(job: Job) -> IllegalTransition:
    actions = allowed_actions(job.state)
    return IllegalTransition(f"the job has already {job.state}", state=job.state, allowed_actions=actions)


def _cancel(session: Session, job: Job) -> Job:
    this = [Job.id == job.id]
    if job.state is JobState.RUNNING and job.cancel_request_time is None:
        what = Happening("cancel requested; the worker ends the current step first")
        return note(session, CANCEL_REQUESTED, this, what, cancel_request_time=db_time()) or job
    if job.state in (JobState.QUEUED, JobState.PAUSED):
        what = Happening("cancelled while no worker held it")
        asked = {"cancel_request_time": db_time(), "stop_reason": "cancelled"}
        return move(session, Move.CANCEL, this, what, **asked) or job
    return job
