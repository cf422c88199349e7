"""A worker that freezes between two statements of a transaction, with the job's row locked, on PostgreSQL."""

from __future__ import annotations

import pytest

from jobs import db as database_module
from jobs.db import Database
from jobs.errors import Unavailable
from jobs.lease import Lease, fence
from jobs.lifecycle import heartbeat, reap
from jobs.service import get
from jobs.states import JobState
from jobs.transition import touch
from tests.support.attempts import ANN, claimed, submitted
from tests.support.invariants import check_invariants
from tests.support.servers import wait_until

pytestmark = pytest.mark.slow


def write_late(frozen: Database, others: Database, lease: Lease, meets_it: str) -> None:
    """Begin to write, wait until others have taken the job, and go on."""
    with frozen.transaction() as session:
        touch(session, fence(lease), phase="optimise")
        assert reap(others) == []
        wait_until(lambda: reap(others) == [lease.job_id], 60, lambda: "its lock is for ever")
        if meets_it == "a statement":
            touch(session, fence(lease), phase="checkpoint")


@pytest.mark.parametrize("meets_it", ["a statement", "the commit"])
def test_a_holder_that_freezes_with_the_row_locked_is_cut_off(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, meets_it: str
) -> None:
    """Nobody waits for it, the server ends its transaction, and the job goes on without what it had begun to write."""
    others = Database(postgres_url)
    sooner = database_module._POSTGRES_OPTIONS.replace("session_timeout=60s", "session_timeout=1s")
    assert sooner != database_module._POSTGRES_OPTIONS
    monkeypatch.setattr(database_module, "_POSTGRES_OPTIONS", sooner)
    frozen = Database(postgres_url)
    job_id = submitted(others)
    held = claimed(others, lease_seconds=-1)
    with pytest.raises(Unavailable):
        write_late(frozen, others, held.lease, meets_it)
    job = get(others, ANN, job_id)
    assert (job.state, job.phase) == (JobState.QUEUED, None)
    new = claimed(others, job_id, worker_id="w2")
    heartbeat(frozen, new.lease, lease_seconds=60)  # over a fresh connection
    check_invariants(others)
    for one in (others, frozen):
        one.dispose()
