"""What an owner may have: running jobs, held back at the claim; queued jobs, and datasets, refused when they come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from jobs import audit
from jobs.access_requests import QuotaRequest, owner_name
from jobs.access_tables import OwnerQuota
from jobs.access_views import QuotaView, Usage
from jobs.clock import db_time
from jobs.db import Database
from jobs.errors import DatasetQuotaExceeded, Problem, QuotaExceeded
from jobs.principal import Principal
from jobs.states import JobState
from jobs.tables import IS_RUNNING, Dataset, Job

_UNLIMITED = 2**62
_UNDER_WAY = 256
"""More submits of one owner than are under way at one moment. Only so near to a limit do they take turns: in turn, each
waits until the one before it is on the disk."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of an owner for whom an administrator set no others; None: none."""

    running: int | None = None
    queued: int | None = None
    datasets: int | None = None
    stored_bytes: int | None = None
    """Of all datasets together."""


NO_LIMITS = Limits()


def check_queued(session: Session, owner_id: str, limits: Limits) -> None:
    """Refuse what has just put one more job into the queue; call it last in the transaction.

    Raises:
        QuotaExceeded: more are queued now than the owner may have.
    """
    asked = {"owner": owner_id, "default": _UNLIMITED if limits.queued is None else limits.queued}
    queued, most = session.execute(_QUEUED, asked).one()
    if queued > most - _UNDER_WAY:
        _in_turn(session, owner_id)
        queued, most = session.execute(_QUEUED, asked).one()
    if queued > most:
        raise QuotaExceeded(
            f"{most} of your jobs are queued, which is your quota: wait until some have started, cancel some, "
            "or ask an administrator for more"
        )


def exhausted_owners(limits: Limits) -> sa.CompoundSelect[str]:
    """Owners who run as many jobs as they may. Reads the running jobs and the quotas, never the queue."""
    most = sa.func.coalesce(OwnerQuota.max_running_jobs, _number(limits.running))
    running = sa.select(Job.owner_id).outerjoin(OwnerQuota, OwnerQuota.owner_id == Job.owner_id).where(IS_RUNNING)
    full = running.group_by(Job.owner_id, OwnerQuota.max_running_jobs).having(sa.func.count() >= most)
    # Who may run nothing has nothing that runs, and so would not be found above.
    return full.union_all(sa.select(OwnerQuota.owner_id).where(OwnerQuota.max_running_jobs == 0))


def within_running(session: Session, owner_id: str, limits: Limits) -> bool:
    """Whether a claim in this transaction has left the owner within the quota, whatever others claim meanwhile."""
    override = sa.select(OwnerQuota.max_running_jobs).where(OwnerQuota.owner_id == owner_id)
    most = session.scalar(override)
    most = limits.running if most is None else most
    if most is None:
        return True
    _in_turn(session, owner_id)
    return (session.scalar(sa.select(_of(owner_id, JobState.RUNNING))) or 0) <= most


def check_datasets(session: Session, owner_id: str, limits: Limits) -> None:
    """Refuse what has just added a dataset; call it last in the transaction.

    Raises:
        DatasetQuotaExceeded: the owner has more of them, or more bytes, than allowed.
    """
    _in_turn(session, owner_id)
    _require_room(session, owner_id, limits, 0, 0)


def check_upload(db: Database, owner_id: str, limits: Limits, size_bytes: int) -> None:
    """Refuse a file that has no room before its rows are read; `check_datasets` decides.

    Raises:
        DatasetQuotaExceeded: as there.
    """
    with db.read() as session:
        _require_room(session, owner_id, limits, 1, size_bytes)


def _require_room(session: Session, owner_id: str, limits: Limits, more: int, more_bytes: int) -> None:
    most, most_bytes = _most_datasets(session.get(OwnerQuota, owner_id), limits)
    if most is None and most_bytes is None:
        return
    count, stored = session.execute(_datasets(owner_id)).one()
    over: list[tuple[str, int]] = []
    if most is not None and count + more > most:
        over.append((f"{most} datasets are your quota, and this would be number {count + more}", most))
    if most_bytes is not None and stored + more_bytes > most_bytes:
        all_bytes = stored + more_bytes
        over.append(
            (f"{most_bytes} bytes of datasets are your quota, and with this they would be {all_bytes}", most_bytes)
        )
    if over:
        problems = [Problem(pointer="", code="quota_exceeded", detail=text, allowed=[limit]) for text, limit in over]
        what = "; ".join(text for text, _ in over)
        raise DatasetQuotaExceeded(f"{what}: delete some, or ask an administrator for more", problems=problems)


def _datasets(owner_id: str) -> sa.Select[int, int]:
    """How many an owner has, and their bytes on disk; of those that an older version took, as they were uploaded."""
    size = sa.func.coalesce(Dataset.stored_bytes, Dataset.size_bytes)
    total = sa.cast(sa.func.coalesce(sa.func.sum(size), 0), sa.BigInteger)
    return sa.select(sa.func.count(), total).where(Dataset.owner_id == owner_id)


def _most_datasets(override: OwnerQuota | None, limits: Limits) -> tuple[int | None, int | None]:
    count = None if override is None else override.max_datasets
    size = None if override is None else override.max_stored_bytes
    return limits.datasets if count is None else count, limits.stored_bytes if size is None else size


def quota(db: Database, owner_id: str, limits: Limits) -> QuotaView:
    """What an owner may have and has."""
    with db.read() as session:
        return _view(session, owner_id, limits)


def set_quota(db: Database, principal: Principal, owner_id: str, wanted: QuotaRequest, limits: Limits) -> QuotaView:
    """Allow an owner so much. What runs, waits and is stored already is left alone.

    The caller must be an administrator; `api.operations` sees to that.
    """
    values = wanted.model_dump()
    row = {"owner_id": owner_name(owner_id), **values, "update_time": db_time()}
    with db.transaction() as session:
        insert = postgresql.insert if _is_postgres(session) else sqlite.insert
        put = insert(OwnerQuota).values(row)
        session.execute(put.on_conflict_do_update(index_elements=["owner_id"], set_=row))
        audit.record(session, principal, "quota.set", owner_id, **values)
        return _view(session, owner_id, limits)


def _view(session: Session, owner_id: str, limits: Limits) -> QuotaView:
    override = session.get(OwnerQuota, owner_id)
    running, queued = session.execute(
        sa.select(_of(owner_id, JobState.RUNNING).label("running"), _of(owner_id, JobState.QUEUED).label("queued"))
    ).one()
    most_running = None if override is None else override.max_running_jobs
    most_queued = None if override is None else override.max_queued_jobs
    datasets, stored_bytes = session.execute(_datasets(owner_id)).one()
    most_datasets, most_bytes = _most_datasets(override, limits)
    return QuotaView(
        owner=owner_id,
        running_jobs=Usage(used=running, limit=limits.running if most_running is None else most_running),
        queued_jobs=Usage(used=queued, limit=limits.queued if most_queued is None else most_queued),
        datasets=Usage(used=datasets, limit=most_datasets),
        stored_bytes=Usage(used=stored_bytes, limit=most_bytes),
        is_default=override is None or all(getattr(override, name) is None for name in QuotaRequest.model_fields),
    )


def _of(owner_id: str | sa.ColumnElement[str], state: JobState) -> sa.ScalarSelect[int]:
    return sa.select(sa.func.count()).where(Job.owner_id == owner_id, Job.state == state).scalar_subquery()


def _queued_query() -> sa.Select[int, Any]:
    """How many jobs of an owner are queued, and how many may be. Built once: every submit asks."""
    owner = sa.bindparam("owner", type_=Job.owner_id.type)
    override = sa.select(OwnerQuota.max_queued_jobs).where(OwnerQuota.owner_id == owner).scalar_subquery()
    most = sa.func.coalesce(override, sa.bindparam("default", type_=sa.BigInteger()))
    return sa.select(_of(owner, JobState.QUEUED).label("queued"), most.label("most"))


def _number(limit: int | None) -> sa.ColumnElement[int]:
    return sa.literal(_UNLIMITED if limit is None else limit, sa.BigInteger())


def _in_turn(session: Session, owner_id: str) -> None:
    """From here to its end one transaction of an owner at a time, so that two cannot both take the last place.

    On SQLite all writers take turns anyway. A row would do as well, but most owners have none.
    """
    if _is_postgres(session):
        session.execute(sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtextextended(f"quota:{owner_id}", 0))))


def _is_postgres(session: Session) -> bool:
    return session.get_bind().dialect.name == "postgresql"


_QUEUED = _queued_query()
