"""Asking for a replay of a job's steps from one of its checkpoints, compared with what the job recorded."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from jobs.auth import Principal
from jobs.claiming import sampling_parts
from jobs.db import Database
from jobs.errands import ask
from jobs.errors import InvalidRequest, JobNotFound, Problem
from jobs.history import owned
from jobs.previews import invalid_request
from jobs.problems import check
from jobs.spec import JobSpec
from jobs.tables import Job, JobCheckpoint, JobEvent, JobMetrics, JobSample
from jobs.views import ROLLED_BACK
from ppo_engine.errands import ErrandKind
from ppo_engine.inheritance import Part, is_inherited
from ppo_engine.verification import (
    KeptCheckpoint,
    RecordedSample,
    RecordedStep,
    VerificationRequest,
    VerificationWork,
)


def ask_verification(db: Database, principal: Principal, job_id: str, document: Any) -> str:
    """Have steps replayed; returns the errand's id. Only reads of the job.

    Raises:
        JobNotFound: no such job, or it keeps no such checkpoint.
        InvalidRequest: with every problem found; also where no checkpoint has enough steps after it.
        NoWorker, QuotaExceeded: see `jobs.errands.ask`.
    """
    with db.read() as session:
        job = owned(session, principal, job_id)
    request, problems = check(VerificationRequest, document)
    if request is None or problems:
        raise invalid_request(problems)
    spec = JobSpec.model_validate(job.spec)
    with db.read() as session:
        work = _work(session, job, spec, request)
    body = work.model_dump(mode="json")  # nulls too: a default must not come back over them
    queue = spec.resources.queue
    return ask(db, principal, kind=ErrandKind.VERIFY_RESUME, request=body, queue=queue, job_id=job.id)


def _work(session: Session, job: Job, spec: JobSpec, request: VerificationRequest) -> VerificationWork:
    kept = _kept(session, job.id)
    start = _start(session, job, request, kept)
    last = start.step + request.steps
    config, trained = spec.train_config(), _trained(session, job.id, start.step)
    anew = job.inherited["anew"] if job.inherited is not None and is_inherited(start.folder) else []
    return VerificationWork(
        job_id=job.id,
        config=config if job.microbatch_size is None else config.with_microbatch_size(job.microbatch_size),
        start=start,
        steps=request.steps,
        parts=sampling_parts(job.microbatch_size),
        twice=request.twice,
        anew=[Part(name) for name in anew],
        recorded=[] if request.twice else _recorded(session, job.id, start.step, last),
        later=[] if request.twice else [one for one in kept if start.step < one.step <= last],
        device=trained.get("device"),
        precision=trained.get("precision"),
    )


def _kept(session: Session, job_id: str) -> list[KeptCheckpoint]:
    """Oldest first."""
    query = sa.select(JobCheckpoint.step, JobCheckpoint.path).where(JobCheckpoint.job_id == job_id)
    return [
        KeptCheckpoint(step=row.step, folder=row.path) for row in session.execute(query.order_by(JobCheckpoint.step))
    ]


def _start(session: Session, job: Job, request: VerificationRequest, kept: list[KeptCheckpoint]) -> KeptCheckpoint:
    """The checkpoint to begin with: the one named, or the newest with enough steps after it."""
    newest = sa.select(sa.func.max(JobMetrics.step)).where(JobMetrics.job_id == job.id)
    known = job.steps_total if request.twice else session.scalar(newest) or 0
    void = _void_before(session, job.id)
    if request.step is None:
        found = [one for one in kept if void <= one.step <= known - request.steps]
    else:
        found = [one for one in kept if one.step == request.step]
        if not found:
            raise JobNotFound(f"the job keeps no checkpoint of step {request.step}; {_have(kept)}")
        if request.step < void:
            raise _refused(
                "/step", "rolled_back", f"the run was rolled back to step {void} later: replay from there on"
            )
    if not found or found[-1].step + request.steps > known or not _all_there(session, job.id, found[-1].step, request):
        raise _too_few(request, kept, known)
    return found[-1]


def _too_few(request: VerificationRequest, kept: list[KeptCheckpoint], known: int) -> InvalidRequest:
    steps = "1 step" if request.steps == 1 else f"{request.steps} steps"
    what = f"has {steps} left in the job's spec" if request.twice else f"has {steps} recorded after it"
    also = "" if request.twice else ", or ask for `twice` where the records are gone"
    detail = (
        f"no checkpoint that fits {what} ({_have(kept)}; the last step is {known}): ask for fewer `steps`{also}; "
        "checkpoint.keep_last in the spec keeps more"
    )
    return _refused("/steps", "too_few_steps", detail)


def _have(kept: list[KeptCheckpoint]) -> str:
    return f"steps that have one: {', '.join(str(one.step) for one in kept) or 'none'}"


def _refused(pointer: str, code: str, detail: str) -> InvalidRequest:
    return InvalidRequest(detail, problems=[Problem(pointer=pointer, code=code, detail=detail)])


def _all_there(session: Session, job_id: str, step: int, request: VerificationRequest) -> bool:
    """Whether all the steps to replay are recorded."""
    query = sa.select(sa.func.count()).where(
        JobMetrics.job_id == job_id, JobMetrics.step > step, JobMetrics.step <= step + request.steps
    )
    return request.twice or session.scalar(query) == request.steps


def _void_before(session: Session, job_id: str) -> int:
    """The step of the last rollback: what came after an older checkpoint was made with other random numbers."""
    query = sa.select(JobEvent.data).where(JobEvent.job_id == job_id, JobEvent.type == ROLLED_BACK)
    return max((int(data["to_step"]) for data in session.scalars(query)), default=0)


def _trained(session: Session, job_id: str, step: int) -> dict[str, Any]:
    """What the attempt that went over `step` said when it began."""
    query = sa.select(JobEvent.data).where(JobEvent.job_id == job_id, JobEvent.type == "started")
    said = [data for data in session.scalars(query.order_by(JobEvent.seq)) if data["step"] <= step]
    return said[-1] if said else {}


def _recorded(session: Session, job_id: str, after: int, last: int) -> list[RecordedStep]:
    def between(table: type[JobMetrics | JobSample]) -> list[sa.ColumnElement[bool]]:
        return [table.job_id == job_id, table.step > after, table.step <= last]

    samples: dict[int, list[RecordedSample]] = {}
    for row in session.scalars(
        sa.select(JobSample).where(*between(JobSample)).order_by(JobSample.step, JobSample.index)
    ):
        facts = {name: getattr(row, name) for name in RecordedSample.model_fields}
        samples.setdefault(row.step, []).append(RecordedSample(**facts))
    rows = session.scalars(sa.select(JobMetrics).where(*between(JobMetrics)).order_by(JobMetrics.step))
    return [RecordedStep(step=row.step, scalars=row.scalars, samples=samples.get(row.step, [])) for row in rows]
