"""Errands at the front door: short engine work that a worker does at once, beside its jobs.

Each function is one transaction, scoped to the principal, and raises JobsError.
"""

from __future__ import annotations

import re
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from jobs import audit
from jobs.auth import Principal
from jobs.clock import db_time
from jobs.db import Database
from jobs.errand_views import ErrandState, ErrandView
from jobs.errors import JobNotFound, NoWorker, QuotaExceeded
from jobs.fleet import ALIVE_SECONDS
from jobs.ids import sortable_id
from jobs.tables import Errand, Worker
from jobs.views import JobError
from ppo_engine.errands import ErrandKind

MAX_OPEN = 8
"""Errands of one owner that have not ended: a worker does one at a time."""
PATIENCE_SECONDS = 600.0
"""An errand that no worker has taken by then has failed."""
KEPT_SECONDS = 3600.0
"""How long the answer can be read."""
ERRAND_ID = re.compile(r"errand_[0-9a-z]{26}")
OPEN = "open"
"""`outcome` of an errand that has not ended."""
_ACTIONS = {
    ErrandKind.PREVIEW_REWARD: "reward.preview",
    ErrandKind.GENERATE: "job.generate",
    ErrandKind.PROBE: "job.plan",
    ErrandKind.EXPORT: "model.export",
    ErrandKind.VERIFY_RESUME: "job.verify_resume",
}
"""Its name in the audit log."""
_ANSWERS = {
    ErrandKind.PREVIEW_REWARD: "preview",
    ErrandKind.GENERATE: "generation",
    ErrandKind.PROBE: "probe",
    ErrandKind.EXPORT: "export",
    ErrandKind.VERIFY_RESUME: "verification",
}
"""The field of the view that holds the answer."""


def ask(
    db: Database,
    principal: Principal,
    *,
    kind: ErrandKind,
    request: dict[str, Any],
    queue: str,
    job_id: str | None = None,
) -> str:
    """Have an errand done by a worker of `queue`; returns its id. `job_id`: the job it is about.

    Raises:
        NoWorker: none is alive that could.
        QuotaExceeded: MAX_OPEN of this owner's are under way.
    """
    errand_id = sortable_id("errand")
    with db.transaction() as session:
        _require_worker(session, queue)
        _require_room(session, principal)
        row = {"id": errand_id, "owner_id": principal.owner_id, "kind": kind.value, "queue": queue, "request": request}
        session.execute(sa.insert(Errand).values(**row, job_id=job_id, expire_time=db_time(PATIENCE_SECONDS)))
        audit.record(session, principal, _ACTIONS[kind], job_id or errand_id)
    return errand_id


def errand(db: Database, principal: Principal, errand_id: str) -> ErrandView:
    """An errand as it is now; raises JobNotFound, also for one that ended more than KEPT_SECONDS ago."""
    with db.read() as session:
        return errand_view(owned_errand(session, principal, errand_id))


def owned_errand(session: Session, principal: Principal, errand_id: str, *, lock: bool = False) -> Errand:
    """The errand, if it is the principal's own; raises JobNotFound otherwise, whether it exists or not."""
    mine = sa.select(Errand).where(Errand.id == errand_id, Errand.owner_id == principal.owner_id)
    row = session.scalar(mine.with_for_update() if lock else mine) if ERRAND_ID.fullmatch(errand_id) else None
    if row is None:
        raise JobNotFound("there is no such errand; answers are kept for an hour")
    return row


def errand_view(row: Errand, *, answered: bool = True) -> ErrandView:
    """An errand for its owner; with its answer, which may be long, unless `answered` is false."""
    answer = row.answer if answered else None
    return ErrandView(
        id=row.id,
        kind=ErrandKind(row.kind),
        state=_state(row),
        done=row.end_time is not None,
        tries=row.tries,
        job_id=row.job_id,
        error=None if row.error is None else JobError.model_validate(row.error),
        create_time=row.create_time,
        start_time=row.start_time,
        end_time=row.end_time,
        cancel_request_time=row.cancel_request_time,
        **({} if answer is None else {_ANSWERS[ErrandKind(row.kind)]: answer}),
    )


def _state(row: Errand) -> ErrandState:
    if row.outcome != OPEN:
        return ErrandState(row.outcome)
    if row.end_time is not None:  # by a worker of an older version
        return ErrandState.SUCCEEDED if row.error is None else ErrandState.FAILED
    return ErrandState.WAITING if row.worker_id is None else ErrandState.RUNNING


def _require_worker(session: Session, queue: str) -> None:
    alive = sa.select(Worker.queues).where(Worker.update_time > db_time(-ALIVE_SECONDS), Worker.errands.is_(True))
    served = {name for queues in session.scalars(alive) for name in queues}
    if queue not in served:
        others = f"; those alive serve {', '.join(sorted(served))}" if served else ""
        raise NoWorker(f"no worker alive does this for the queue `{queue}`{others}: start one, or wait for it")


def _require_room(session: Session, principal: Principal) -> None:
    mine = sa.select(Errand.id).where(Errand.owner_id == principal.owner_id, Errand.end_time.is_(None))
    if len(session.scalars(mine.limit(MAX_OPEN)).all()) == MAX_OPEN:
        raise QuotaExceeded(
            f"{MAX_OPEN} of your previews, plans and generations are under way: wait for one", retry_after_seconds=10
        )
