"""The mechanisms that keep the invariants, switched off in the real code: a check that misses that checks nothing.

`python -m tests.support.sabotage` is a worker without a fence.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from jobs import checkpoints, claiming, ending, errand_work, inheriting, lease, recording, reports, service, transition
from jobs.errand_work import ErrandClaim
from jobs.lease import Lease
from jobs.states import TRANSITIONS, JobState
from jobs.tables import Errand, Job
from worker.__main__ import main
from worker.lease import LeaseKeeper

_FENCED = (checkpoints, ending, inheriting, lease, recording, reports)


@contextmanager
def without_fence() -> Iterator[None]:
    """Whoever once held a job may write to it; nor does a worker watch the age of its lease."""
    with (
        _fence(lambda held: [Job.id == held.job_id]),
        patch.object(LeaseKeeper, "_fence_when_late", lambda _self: None),
    ):
        yield


@contextmanager
def without_state_guard() -> Iterator[None]:
    """Any move from any state, and reports of an attempt that has ended."""
    anywhere = {move: (frozenset(JobState), target) for move, (_, target) in TRANSITIONS.items()}
    with (
        _fence(lambda held: [Job.id == held.job_id, Job.lease_token == held.token]),
        patch.object(transition, "TRANSITIONS", anywhere),
    ):
        yield


@contextmanager
def deferred_transactions() -> Iterator[None]:
    """SQLite's own kind of transaction, for every database that is opened in the block."""

    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    with patch("jobs.db._begin_sqlite", begin):
        yield


@contextmanager
def without_key_check() -> Iterator[None]:
    """Nobody looks whether an idempotency key was used before."""
    with patch.object(service, "_earlier", lambda *_: None):
        yield


@contextmanager
def without_key() -> Iterator[None]:
    """An idempotency key is not stored with its job."""
    create = service._create

    def keyless(db: Any, principal: Any, spec: Any, _request_id: Any, limits: Any, lineage: Any) -> Any:
        return create(db, principal, spec, None, limits, lineage)

    with patch.object(service, "_create", keyless):
        yield


@contextmanager
def without_charge() -> Iterator[None]:
    """No attempt counts as failed."""
    end = ending._end

    def free(*arguments: Any, **values: Any) -> None:
        end(*arguments, **{**values, "charge": False})

    with patch.object(ending, "_end", free):
        yield


@contextmanager
def without_rewind() -> Iterator[None]:
    """A new attempt leaves what was recorded behind the checkpoint that it begins with."""
    with patch.object(claiming, "rewind", lambda *_: None):
        yield


@contextmanager
def without_outbox() -> Iterator[None]:
    """Webhooks hear of nothing."""
    with patch.object(transition, "announce", lambda *_: None):
        yield


@contextmanager
def without_errand_fence() -> Iterator[None]:
    """Whoever once had an errand may answer it."""

    def write(db: Any, claim: ErrandClaim, **values: Any) -> None:
        with db.transaction() as session:
            session.execute(sa.update(Errand).where(Errand.id == claim.id).values(**values))

    with patch.object(errand_work, "_write", write):
        yield


@contextmanager
def _fence(conditions: Any) -> Iterator[None]:
    def fence(held: Lease) -> list[sa.ColumnElement[bool]]:
        found: list[sa.ColumnElement[bool]] = conditions(held)
        return found

    originals = [module.fence for module in _FENCED]  # type: ignore[attr-defined]
    for module in _FENCED:
        module.fence = fence  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module, original in zip(_FENCED, originals, strict=True):
            module.fence = original  # type: ignore[attr-defined]


if __name__ == "__main__":
    with without_fence():
        sys.exit(main())
