"""Errands as a worker sees them. Every write behind a claim is fenced by its token, and raises LeaseLost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from jobs.clock import db_time
from jobs.db import Database
from jobs.errand_views import ErrandState
from jobs.errands import KEPT_SECONDS
from jobs.errors import LeaseLost
from jobs.lease import Wishes
from jobs.plain import storable
from jobs.tables import Errand
from jobs.views import JobError

MAX_TRIES = 2
"""An errand whose worker is lost is tried once more."""
_BATCH = 100
_NOBODY = {"worker_id": None, "lease_expire_time": None}


@dataclass(frozen=True)
class ErrandClaim:
    """An errand that is now ours."""

    id: str
    token: int
    tries: int
    kind: str
    request: dict[str, Any]


def claim_errand(db: Database, *, worker_id: str, queues: list[str], lease_seconds: float) -> ErrandClaim | None:
    """Take the errand of `queues` that waits longest; None if none does."""
    waits = [Errand.end_time.is_(None), Errand.worker_id.is_(None), Errand.queue.in_(queues)]
    next_id = sa.select(Errand.id).where(*waits).order_by(Errand.create_time, Errand.id).limit(1)
    with db.read() as session:  # most polls find nothing, and then write nothing
        if session.scalar(next_id) is None:
            return None
    take = sa.update(Errand).where(Errand.id == next_id.with_for_update(skip_locked=True).scalar_subquery(), *waits)
    taken = take.values(
        worker_id=worker_id,
        lease_expire_time=db_time(lease_seconds),
        lease_token=Errand.lease_token + 1,
        tries=Errand.tries + 1,
        start_time=sa.func.coalesce(Errand.start_time, db_time()),
    ).returning(Errand)
    with db.transaction() as session:
        row = session.scalar(taken)
        return None if row is None else ErrandClaim(row.id, row.lease_token, row.tries, row.kind, row.request)


def beat_errand(db: Database, claim: ErrandClaim, *, lease_seconds: float) -> Wishes:
    """Extend the lease, and hear whether its owner still wants it; raises LeaseLost."""
    return Wishes(cancel=_write(db, claim, lease_expire_time=db_time(lease_seconds)))


def answer_errand(db: Database, claim: ErrandClaim, answer: dict[str, Any]) -> None:
    """End it with an answer; raises LeaseLost."""
    _write(db, claim, **_NOBODY, **_ended(ErrandState.SUCCEEDED), answer=_clean(answer))


def fail_errand(db: Database, claim: ErrandClaim, error: JobError) -> None:
    """End it with an error; raises LeaseLost."""
    _write(db, claim, **_NOBODY, **_ended(ErrandState.FAILED), error=_clean(error.model_dump(mode="json")))


def end_cancelled(db: Database, claim: ErrandClaim) -> None:
    """End it as its owner wished; raises LeaseLost."""
    _write(db, claim, **_NOBODY, **cancelled())


def return_errand(db: Database, claim: ErrandClaim) -> None:
    """Give it back for another worker, as if it had not been begun; one that was cancelled ends. Raises LeaseLost."""
    with db.transaction() as session:
        if _hold(session, claim, **_NOBODY, tries=Errand.tries - 1):
            session.execute(sa.update(Errand).where(Errand.id == claim.id).values(**cancelled()))


def tidy_errands(db: Database) -> int:
    """Return errands of lost workers, end those that were tried or waited enough, delete old ones.

    Returns how many lost workers' errands there were.
    """
    lost = [Errand.worker_id.is_not(None), Errand.lease_expire_time < db_time()]
    again = sa.update(Errand).where(*lost, Errand.tries < MAX_TRIES).values(**_NOBODY)
    gave_up = sa.update(Errand).where(*lost).values(**_NOBODY, **_ended(ErrandState.FAILED), error=_LOST)
    unwished = sa.update(Errand).where(*lost, Errand.cancel_request_time.is_not(None)).values(**_NOBODY, **cancelled())
    old = sa.select(Errand.id).where(Errand.expire_time < db_time()).order_by(Errand.expire_time).limit(_BATCH)
    unwanted = [Errand.id.in_(old), Errand.end_time.is_(None), Errand.worker_id.is_(None)]
    with db.read() as session:
        if session.scalar(sa.select(Errand.id).where(*lost).limit(1)) is None and session.scalar(old) is None:
            return 0
    with db.transaction() as session:
        returned = sum(len(session.scalars(one.returning(Errand.id)).all()) for one in (unwished, again, gave_up))
        not_taken = {**_ended(ErrandState.FAILED), "error": _NOT_TAKEN}
        session.execute(sa.update(Errand).where(*unwanted).values(**not_taken))
        session.execute(sa.delete(Errand).where(Errand.id.in_(old), Errand.end_time.is_not(None)))
    return returned


def cancelled() -> dict[str, Any]:
    """Columns of an errand that ends because its owner wants so."""
    return {**_ended(ErrandState.CANCELLED), "error": _CANCELLED}


def _write(db: Database, claim: ErrandClaim, **values: Any) -> bool:
    """Write what the claim's holder says; whether its owner wants it to end. Raises LeaseLost."""
    with db.transaction() as session:
        return _hold(session, claim, **values)


def _hold(session: Session, claim: ErrandClaim, **values: Any) -> bool:
    fence = [Errand.id == claim.id, Errand.lease_token == claim.token, Errand.worker_id.is_not(None)]
    write = sa.update(Errand).where(*fence).values(**values).returning(Errand.cancel_request_time)
    row = session.execute(write).first()
    if row is None:
        raise LeaseLost(f"try {claim.tries} of {claim.id} no longer holds the errand")
    return row.cancel_request_time is not None


def _ended(outcome: ErrandState) -> dict[str, Any]:
    return {"end_time": db_time(), "expire_time": db_time(KEPT_SECONDS), "outcome": outcome.value}


def _clean(value: Any) -> Any:
    """JSON that every database takes: a model may write any character."""
    if isinstance(value, dict):
        return {storable(name): _clean(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, str):
        return storable(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _error(code: str, category: str, message: str, suggestion: str, tries: int) -> dict[str, Any]:
    error = JobError(code=code, category=category, message=message, suggestion=suggestion, attempt=tries)
    return error.model_dump(mode="json")


_LOST = _error(
    "worker_lost",
    "infra",
    f"The workers that did this were lost, {MAX_TRIES} times.",
    "Look at the workers' logs, and ask again.",
    MAX_TRIES,
)
_CANCELLED = _error("cancelled", "user", "Its owner cancelled it.", "", 0)
_NOT_TAKEN = _error(
    "not_taken",
    "capacity",
    "No worker had the time to do this.",
    "Ask again later, or run more workers: each does one such thing at a time.",
    0,
)
