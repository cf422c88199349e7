"""A job's row as its owner sees it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Session

from jobs.clock import db_time
from jobs.fleet import ALIVE_SECONDS
from jobs.health import verdict
from jobs.states import TERMINAL, JobState, allowed_actions
from jobs.tables import IS_QUEUED, Job, Worker
from jobs.views import JobError, JobView, Progress, Queue

_COUNTED = 1000
"""Nobody needs to know whether 1000 or 2000 jobs are ahead, and counting them all for every row of a page is slow."""
_PARTS = ("events", "metrics", "samples", "checkpoints", "logs", "attempts", "health")


def job_views(session: Session, jobs: Sequence[Job]) -> list[JobView]:
    """Views of some jobs, read within their transaction."""
    return [_view(job, _place(session, job) if job.state is JobState.QUEUED else None) for job in jobs]


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
        allowed_actions=actions(job),
        spec=job.spec,
        spec_hash=job.spec_hash,
        labels=labels(job),
        attempt=job.attempt,
        max_attempts=job.max_attempts,
        progress=_progress(job),
        latest_metrics=job.latest_metrics,
        health=verdict(job.latest_metrics, job.step),
        stop_reason=job.stop_reason,
        error=JobError.model_validate(job.error) if job.error else None,
        last_checkpoint_step=job.last_checkpoint_step,
        best_checkpoint_step=job.best_checkpoint_step,
        create_time=job.create_time,
        start_time=job.start_time,
        end_time=job.end_time,
        update_time=job.update_time,
        cancel_request_time=job.cancel_request_time,
        stop_request_time=job.stop_request_time,
        pause_request_time=job.pause_request_time,
        queue=queue,
        etag="",
        links=_links(job.id),
    )
    shown = view.model_dump_json(exclude={"spec"})  # its hash stands for it
    return view.model_copy(update={"etag": hashlib.sha256(shown.encode()).hexdigest()[:32]})


def labels(job: Job) -> dict[str, str]:
    """The job's labels as they are now."""
    return job.spec.get("labels", {}) if job.labels is None else job.labels


def actions(job: Job) -> list[str]:
    """Verbs that the job's owner may use now."""
    wishes = {"cancel": job.cancel_request_time, "stop": job.stop_request_time, "pause": job.pause_request_time}
    # A wish to stop may wait in the queue, until a worker has made a first step.
    waits = job.state is JobState.RUNNING or (job.state is JobState.QUEUED and job.stop_request_time is not None)
    wish = next((name for name, asked in wishes.items() if asked is not None), None) if waits else None
    return allowed_actions(job.state, wish=wish)


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


def _place(session: Session, job: Job) -> Queue:
    mine = {"queue": job.queue, "rank": job.rank, "create_time": job.create_time, "id": job.id}
    rows = session.execute(_PLACE, mine).all()
    served = {queue for row in rows for queue in row.queues or ()}
    return Queue(position=1 + rows[0].ahead, reason=_reason(job, rows[0].now, served))


def _place_query() -> sa.Select[tuple[int, datetime, list[str] | None]]:
    """Everything about a job's place in one statement: one row per live worker, or one without any."""
    job = sa.tuple_(*(sa.bindparam(key.name, type_=key.type) for key in _ORDER))
    before = sa.select(sa.literal(1)).where(IS_QUEUED, Job.queue == sa.bindparam("queue"), sa.tuple_(*_ORDER) < job)
    count = sa.select(sa.func.count()).select_from(before.limit(_COUNTED - 1).subquery()).scalar_subquery()
    here = sa.select(count.label("ahead"), db_time().label("now")).subquery()
    alive = sa.select(Worker.queues).where(Worker.update_time > db_time(-ALIVE_SECONDS)).subquery()
    return sa.select(here.c.ahead, here.c.now, alive.c.queues).outerjoin_from(here, alive, sa.true())


_ORDER = (Job.rank, Job.create_time, Job.id)
_PLACE = _place_query()


def _reason(job: Job, now: datetime, served: set[str]) -> str:
    if job.not_before > now:
        return f"tried again after {job.not_before:%Y-%m-%d %H:%M:%S} UTC"
    if job.queue not in served:
        return f"no worker serves the queue `{job.queue}`"
    return "waiting for a free worker"
