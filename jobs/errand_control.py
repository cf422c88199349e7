"""What an owner does with the errands that he has asked for: look through them, and cancel one."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import defer

from jobs import audit
from jobs.auth import Principal
from jobs.clock import db_time
from jobs.db import Database
from jobs.errand_views import ErrandState, ErrandView
from jobs.errand_work import cancelled
from jobs.errands import ERRAND_ID, OPEN, errand_view, owned_errand
from jobs.errors import IllegalTransition
from jobs.history import check_range, owned
from jobs.paging import id_before, token_behind
from jobs.tables import Errand
from jobs.views import Page
from ppo_engine.errands import ErrandKind

MAX_PAGE_SIZE = 200


def list_errands(
    db: Database,
    principal: Principal,
    *,
    kind: ErrandKind | None = None,
    state: ErrandState | None = None,
    job_id: str | None = None,
    page_size: int = 50,
    token: str | None = None,
) -> Page[ErrandView]:
    """A page of the principal's errands, newest first, without their answers; those that match all that is given.

    Raises:
        JobNotFound: `job_id` is no job of the principal's.
    """
    check_range("page_size", page_size, 1, 2**31)
    size = min(page_size, MAX_PAGE_SIZE)
    query = sa.select(Errand).where(Errand.owner_id == principal.owner_id, *_matching(kind, state, job_id))
    if token is not None:
        query = query.where(Errand.id < id_before(token, ERRAND_ID))
    # Answers and requests can be megabytes, and a page has many.
    query = query.options(defer(Errand.answer), defer(Errand.request)).order_by(Errand.id.desc()).limit(size + 1)
    with db.read() as session:
        if job_id is not None:
            owned(session, principal, job_id)
        rows = list(session.scalars(query))
    following = token_behind(rows[size - 1].id) if len(rows) > size else None
    return Page[ErrandView](items=[errand_view(row, answered=False) for row in rows[:size]], next_page_token=following)


def cancel_errand(db: Database, principal: Principal, errand_id: str) -> ErrandView:
    """Cancel an errand: one that waits at once; one that runs when its worker hears of it, with its next heartbeat.

    Raises:
        JobNotFound: there is none, or it is another owner's.
        IllegalTransition: it has already succeeded or failed.
    """
    with db.transaction() as session:
        row = owned_errand(session, principal, errand_id, lock=True)
        view = errand_view(row)
        if view.state is ErrandState.CANCELLED or (row.cancel_request_time is not None and not view.done):
            return view
        if view.done:
            message = f"the errand has already {view.state}; nothing more can be done with it"
            raise IllegalTransition(message, state=view.state, allowed_actions=[])
        values = cancelled() if row.worker_id is None else {}
        change = sa.update(Errand).where(Errand.id == row.id).values(cancel_request_time=db_time(), **values)
        audit.record(session, principal, "errand.cancel", row.id, kind=row.kind)
        fresh = {"populate_existing": True}
        return errand_view(session.scalars(change.returning(Errand), execution_options=fresh).one())


def _matching(kind: ErrandKind | None, state: ErrandState | None, job_id: str | None) -> list[sa.ColumnElement[bool]]:
    found: list[Any] = []
    if kind is not None:
        found.append(Errand.kind == kind.value)
    if job_id is not None:
        found.append(Errand.job_id == job_id)
    if state in (ErrandState.WAITING, ErrandState.RUNNING):
        # An owner has few that are open, and the index of outcomes finds them.
        held = Errand.worker_id.is_(None) if state is ErrandState.WAITING else Errand.worker_id.is_not(None)
        found += [Errand.outcome == OPEN, Errand.end_time.is_(None), held]
    elif state is not None:
        found.append(Errand.outcome == state.value)
    return found
