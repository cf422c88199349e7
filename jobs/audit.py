"""Who changed what, when, from where. A change and its entry are one transaction, so neither is without the other."""

from __future__ import annotations

import re
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from jobs.access_tables import AuditEntry
from jobs.access_views import AuditView
from jobs.clock import db_time
from jobs.db import Database
from jobs.ids import sortable_id
from jobs.mask import mask
from jobs.paging import id_before, token_behind
from jobs.plain import storable
from jobs.principal import Principal
from jobs.views import Page

DONE = "done"
_PRUNED_AT_ONCE = 1000
_ID = re.compile(r"audit_[0-9a-z]{26}")
_RECORD = sa.insert(AuditEntry.__table__)  # type: ignore[arg-type]


def record(
    session: Session,
    principal: Principal,
    action: str,
    target: str | None = None,
    *,
    outcome: str = DONE,
    **detail: Any,
) -> None:
    """Write down a change within its own transaction; `detail` must hold no secret and no text of a user's data."""
    entry = {
        "id": sortable_id("audit"),
        "owner_id": principal.owner_id,
        "key_id": principal.key_id,
        "action": action,
        "target": None if target is None else mask(storable(target))[:128],
        "outcome": outcome,
        "request_id": principal.request_id,
        "address": principal.address,
        "detail": detail,
    }
    session.execute(_RECORD, entry)


def record_refusal(db: Database, principal: Principal, action: str, target: str | None, outcome: str) -> None:
    """Write down a change that was refused, and so left nothing else behind."""
    with db.transaction() as session:
        record(session, principal, action, target, outcome=outcome)


def entries(
    db: Database, *, owner: str | None = None, target: str | None = None, page_size: int = 50, token: str | None = None
) -> Page[AuditView]:
    """A page of the log, newest first: of everybody, or what `owner` did, or what was done to `target`."""
    query = sa.select(AuditEntry).order_by(AuditEntry.id.desc()).limit(page_size + 1)
    if owner is not None:
        query = query.where(AuditEntry.owner_id == owner)
    if target is not None:
        query = query.where(AuditEntry.target == target)
    if token is not None:
        query = query.where(AuditEntry.id < id_before(token, _ID))
    with db.read() as session:
        rows = list(session.scalars(query))
    following = token_behind(rows[page_size - 1].id) if len(rows) > page_size else None
    return Page[AuditView](items=[_view(row) for row in rows[:page_size]], next_page_token=following)


def prune(db: Database, *, days: float) -> int:
    """Forget entries older than `days`, in small transactions that keep nobody waiting; returns how many."""
    old = sa.select(AuditEntry.id).where(AuditEntry.time < db_time(-days * 86400)).limit(_PRUNED_AT_ONCE)
    pruned = 0
    while True:
        with db.read() as session:
            ids = list(session.scalars(old))
        if not ids:
            return pruned
        with db.transaction() as session:
            session.execute(sa.delete(AuditEntry).where(AuditEntry.id.in_(ids)))
        pruned += len(ids)


def _view(row: AuditEntry) -> AuditView:
    return AuditView(
        id=row.id,
        time=row.time,
        owner=row.owner_id,
        key_id=row.key_id,
        action=row.action,
        target=row.target,
        outcome=row.outcome,
        request_id=row.request_id,
        address=row.address,
        detail=row.detail,
    )
