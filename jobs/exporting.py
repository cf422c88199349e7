"""Asking for a merged model: the adapter of a checkpoint, put into the model it was trained on."""

from __future__ import annotations

import sqlalchemy as sa

from jobs.auth import Principal
from jobs.db import Database
from jobs.errands import ask
from jobs.history import no_checkpoint, owned
from jobs.spec import JobSpec
from jobs.tables import Errand, JobCheckpoint
from ppo_engine.errands import ErrandKind, ExportWork


def ask_export(db: Database, principal: Principal, job_id: str, step: int) -> str:
    """Have a checkpoint's adapter merged; returns the errand's id, of one under way where there is one.

    Raises:
        JobNotFound: no such job or checkpoint.
        NoWorker, QuotaExceeded: see `jobs.errands.ask`.
    """
    open_ones = sa.select(Errand).where(
        Errand.owner_id == principal.owner_id, Errand.end_time.is_(None), Errand.kind == ErrandKind.EXPORT.value
    )
    with db.read() as session:
        job = owned(session, principal, job_id)
        row = session.get(JobCheckpoint, (job_id, step))
        if row is None:
            raise no_checkpoint(session, job_id, f"of step {step}")
        spec, folder = JobSpec.model_validate(job.spec), row.path
        under_way = {(one.request["job_id"], one.request["folder"]): one.id for one in session.scalars(open_ones)}
    if (job_id, folder) in under_way:
        return under_way[job_id, folder]
    resources = spec.train_config().resources
    work = ExportWork(job_id=job_id, step=step, folder=folder, model=spec.model, resources=resources)
    body = work.model_dump(mode="json", exclude_none=True)
    return ask(db, principal, kind=ErrandKind.EXPORT, request=body, queue=spec.resources.queue, job_id=job_id)
