"""A job's row as its owner sees it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Session

from jobs.clock import UtcDateTime, db_time
from jobs.fleet import ALIVE_SECONDS
from jobs.states import TERMINAL, JobState, allowed_actions
from jobs.tables import IS_QUEUED, Job, Worker
from jobs.views import JobError, JobView, Progress, Queue

_COUNTED = 1000
"""Nobody needs to know whether 1000 or 2000 jobs are ahead, and counting them all for every row of a page is slow."""
_PARTS = ("events", "metrics", "samples", "checkpoints", "logs")


def job_views(session: Session, jobs: Sequence[Job]) -> list[JobView]:
    """Views of some jobs, read within their transaction."""
    queued = [job for job in jobs if job.state is JobState.QUEUED]
    places = {job.id: place for job, place in zip(queued, _places(session, queued), strict=True)}
    return [_view(job, places.get(job.id)) for job in jobs]


def job_view(session: Session, job: Job) -> JobView:
    """The view of one job."""
    return job_views(session, [job])[0]


def _view(job: Job, queue: Queue | None) -> JobView:
    view = JobView(
        id=job.id,
        name=job.name,
        state=job.state,
        phase=job.phase,
        done=job.state in TERMINAL,
        allowed_actions=allowed_actions(job.state),
        spec=job.spec,
        spec_hash=job.spec_hash,
        labels=job.spec.get("labels", {}),
        attempt=job.attempt,
        max_attempts=job.max_attempts,
        progress=_progress(job),
        latest_metrics=job.latest_metrics,
        stop_reason=job.stop_reason,
        error=JobError.model_validate(job.error) if job.error else None,
        last_checkpoint_step=job.last_checkpoint_step,
        best_checkpoint_step=job.best_checkpoint_step,
        create_time=job.create_time,
        start_time=job.start_time,
        end_time=job.end_time,
        update_time=job.update_time,
        cancel_request_time=job.cancel_request_time,
        queue=queue,
        etag="",
        links=_links(job.id),
    )
    return view.model_copy(update={"etag": hashlib.sha256(view.model_dump_json().encode()).hexdigest()[:32]})


def _progress(job: Job) -> Progress:
    left = job.steps_total - job.step
    running = job.state is JobState.RUNNING and job.seconds_per_step is not None
    return Progress(
        step=job.step,
        steps_total=job.steps_total,
        percent=round(100 * job.step / job.steps_total, 2),
        eta_seconds=round(left * (job.seconds_per_step or 0), 1) if running else None,
    )


def _links(job_id: str) -> dict[str, str]:
    own = f"/v1/jobs/{job_id}"
    return {"self": own} | {part: f"{own}/{part}" for part in _PARTS}


# --- the queue ----------------------------------------------------------------------------------------------------


def _places(session: Session, queued: Sequence[Job]) -> list[Queue]:
    if not queued:
        return []
    now = session.scalars(sa.select(db_time())).one()
    alive = sa.select(Worker.queues).where(Worker.update_time > db_time(-ALIVE_SECONDS))
    served = {queue for queues in session.scalars(alive) for queue in queues}
    return [Queue(position=_position(session, job), reason=_reason(job, now, served)) for job in queued]


def _position(session: Session, job: Job) -> int:
    """1 for the next job; stops counting at _COUNTED."""
    place = sa.tuple_(sa.literal(job.rank), sa.literal(job.create_time, UtcDateTime()), sa.literal(job.id))
    ahead = sa.tuple_(Job.rank, Job.create_time, Job.id) < place
    before = sa.select(sa.literal(1)).where(IS_QUEUED, Job.queue == job.queue, ahead)
    return 1 + (session.scalar(sa.select(sa.func.count()).select_from(before.limit(_COUNTED - 1).subquery())) or 0)


def _reason(job: Job, now: datetime, served: set[str]) -> str:
    if job.not_before > now:
        return f"tried again after {job.not_before:%Y-%m-%d %H:%M:%S} UTC"
    if job.queue not in served:
        return f"no worker serves the queue `{job.queue}`"
    return "waiting for a free worker"
