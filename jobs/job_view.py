"""A job's row as its owner sees it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from jobs.access_tables import OwnerQuota
from jobs.clock import db_time
from jobs.fleet import ALIVE_SECONDS
from jobs.health import verdict
from jobs.lineage import parent_view
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
        parent=parent_view(job),
        microbatch_size=job.microbatch_size,
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
    return allowed_actions(job.state, wish=wish, has_checkpoint=job.last_checkpoint_step is not None)


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
    mine = {
        "queue": job.queue,
        "rank": job.rank,
        "create_time": job.create_time,
        "id": job.id,
        "owner_id": job.owner_id,
    }
    rows = session.execute(_PLACE, mine).all()
    return Queue(position=1 + rows[0].ahead, reason=_reason(job, rows))


def _place_query() -> sa.Select[Any]:
    """Everything about a job's place in one statement: one row per live worker, or one without any."""
    job = sa.tuple_(*(sa.bindparam(key.name, type_=key.type) for key in _ORDER))
    before = sa.select(sa.literal(1)).where(IS_QUEUED, Job.queue == sa.bindparam("queue"), sa.tuple_(*_ORDER) < job)
    count = sa.select(sa.func.count()).select_from(before.limit(_COUNTED - 1).subquery()).scalar_subquery()
    owner = sa.bindparam("owner_id", type_=Job.owner_id.type)
    running = sa.select(sa.func.count()).where(Job.owner_id == owner, Job.state == JobState.RUNNING).scalar_subquery()
    quota = sa.select(OwnerQuota.max_running_jobs).where(OwnerQuota.owner_id == owner).scalar_subquery()
    facts = count.label("ahead"), db_time().label("now"), running.label("running"), quota.label("quota")
    here = sa.select(*facts).subquery()
    workers = sa.select(Worker.queues, Worker.max_running_jobs)
    alive = workers.where(Worker.update_time > db_time(-ALIVE_SECONDS)).subquery()
    return sa.select(here, alive).outerjoin_from(here, alive, sa.true())


_ORDER = (Job.rank, Job.create_time, Job.id)
_PLACE = _place_query()


def _reason(job: Job, rows: Sequence[Any]) -> str:
    """Why it waits; `rows` are those of `_PLACE`."""
    if job.not_before > rows[0].now:
        return f"tried again after {job.not_before:%Y-%m-%d %H:%M:%S} UTC"
    limits = [row.max_running_jobs for row in rows if job.queue in (row.queues or ())]
    if not limits:
        return f"no worker serves the queue `{job.queue}`"
    # The most that any worker allows, where nobody set a number for this owner.
    quota = rows[0].quota if rows[0].quota is not None else None if None in limits else max(limits)
    if quota is not None and rows[0].running >= quota:
        return f"{rows[0].running} of your jobs are running, which is your quota"
    return "waiting for a free worker"
