"""What a worker reports of a running attempt. Every report may come twice; it is stored once."""

from __future__ import annotations

import math
from typing import Any

import sqlalchemy as sa

from jobs.clock import db_time
from jobs.db import Database
from jobs.lease import Lease, fence, held
from jobs.plain import storable
from jobs.reports import evaluated, facts, note_once
from jobs.tables import Job, JobAttempt, JobMetrics, JobSample
from jobs.transition import Happening, note, touch
from ppo_engine.events import GuardTripped, PhaseEntered, Sample, Started, StepDone

_SECONDS = "time/ppo/total"
_MEMORY = 0.8
"""Share of the old average in the moving average of the seconds per step."""


def record_started(db: Database, lease: Lease, event: Started) -> None:
    """The models are loaded; raises LeaseLost."""
    with db.transaction() as session:
        held(touch(session, fence(lease), steps_total=event.steps_total), lease)
        loaded = sa.update(JobAttempt).where(
            JobAttempt.job_id == lease.job_id, JobAttempt.attempt == lease.attempt, JobAttempt.ready_time.is_(None)
        )
        if session.execute(loaded.values(ready_time=db_time()).returning(JobAttempt.id)).first() is not None:
            what = Happening(f"training from step {event.step} on {event.device}", event.model_dump(exclude={"event"}))
            note(session, "started", fence(lease), what)


def record_phase(db: Database, lease: Lease, event: PhaseEntered) -> None:
    """The run entered a phase; raises LeaseLost."""
    with db.transaction() as session:
        held(touch(session, fence(lease), phase=event.phase), lease)


def record_step(db: Database, lease: Lease, event: StepDone) -> None:
    """Store the metrics and samples of a step; raises LeaseLost.

    Step 0 is the evaluation before training. The newest numbers of a job keep those of its newest evaluation.
    """
    scalars = {key: value for key, value in event.scalars.items() if math.isfinite(value)}
    values: dict[str, Any] = {"step": event.step}
    if _SECONDS in scalars:
        average = _MEMORY * Job.seconds_per_step + (1 - _MEMORY) * scalars[_SECONDS]
        values["seconds_per_step"] = sa.func.coalesce(average, scalars[_SECONDS])
    with db.transaction() as session:
        job = held(touch(session, fence(lease), **values), lease)
        touch(session, fence(lease), latest_metrics={**evaluated(job.latest_metrics), **scalars})
        for table in (JobMetrics, JobSample):
            session.execute(sa.delete(table).where(table.job_id == lease.job_id, table.step == event.step))
        session.add(JobMetrics(job_id=lease.job_id, step=event.step, lease_token=lease.token, scalars=scalars))
        session.add_all(_sample(lease, event.step, index, sample) for index, sample in enumerate(event.samples))


def _sample(lease: Lease, step: int, index: int, sample: Sample) -> JobSample:
    return JobSample(
        job_id=lease.job_id,
        step=step,
        index=index,
        lease_token=lease.token,
        prompt=storable(sample.prompt),
        response=storable(sample.response),
        score=sample.score,
        components=sample.components,
        kl=sample.kl,
        response_tokens=sample.response_tokens,
        finished=sample.finished,
        evaluation=sample.evaluation,
    )


def record_guard(db: Database, lease: Lease, event: GuardTripped) -> None:
    """A guard's condition held; raises LeaseLost."""
    with db.transaction() as session:
        held(touch(session, fence(lease)), lease)
        note_once(session, lease, "guard", Happening(f"guard: {event.rule} ({event.action})", facts(event)))
