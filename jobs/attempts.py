"""A job's attempts: who held it, from when to when, how far each came and why it ended."""

from __future__ import annotations

import re

import sqlalchemy as sa

from jobs.auth import Principal
from jobs.db import Database
from jobs.errors import InvalidArgument
from jobs.history import check_range, owned
from jobs.tables import Job, JobAttempt
from jobs.views import AttemptView, JobError, Page

MAX_PAGE_SIZE = 200


def attempts(
    db: Database, principal: Principal, job_id: str, *, page_size: int = 50, page_token: str | None = None
) -> Page[AttemptView]:
    """A page of the job's attempts, newest first; a larger `page_size` than MAX_PAGE_SIZE is cut to it."""
    check_range("page_size", page_size, 1, 2**31)
    size = min(page_size, MAX_PAGE_SIZE)
    query = sa.select(JobAttempt).where(JobAttempt.job_id == job_id).order_by(JobAttempt.attempt.desc())
    if page_token is not None:
        query = query.where(JobAttempt.attempt < _before(page_token))
    with db.read() as session:
        job = owned(session, principal, job_id)
        rows = list(session.scalars(query.limit(size + 1)))
        token = f"a{rows[size - 1].attempt}" if len(rows) > size else None
        return Page[AttemptView](items=[_view(job, row) for row in rows[:size]], next_page_token=token)


def _view(job: Job, row: JobAttempt) -> AttemptView:
    return AttemptView(
        attempt=row.attempt,
        worker_id=row.worker_id,
        start_time=row.start_time,
        ready_time=row.ready_time,
        end_time=row.end_time,
        from_step=row.from_step,
        to_step=job.step if row.end_time is None else row.end_step,
        outcome=row.outcome,
        charged=row.charged,
        error=None if row.error is None else JobError.model_validate(row.error),
    )


def _before(page_token: str) -> int:
    match = re.fullmatch(r"a(\d{1,18})", page_token, re.ASCII)
    if match is None:
        raise InvalidArgument("page_token is not one that this service gave out")
    return int(match[1])
