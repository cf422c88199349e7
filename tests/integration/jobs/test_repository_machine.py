"""Random histories of the real repository layer: the invariants hold in any order, and a stale token is refused."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from jobs.clock import db_time
from jobs.db import Database
from jobs.errors import IllegalTransition, LeaseLost
from jobs.lifecycle import (
    USER_PAUSE,
    Lease,
    cancelled,
    claim,
    discard_checkpoint,
    fail,
    heartbeat,
    reap,
    record_checkpoint,
    record_guard,
    record_rollback,
    record_step,
    requeue,
    succeed,
)
from jobs.lifecycle import pause as end_paused
from jobs.lifecycle import stop as end_stopped
from jobs.service import cancel, get, pause, resume, stop
from jobs.states import JobState
from jobs.tables import Job
from tests.support.attempts import ANN, ERROR, checkpoint, guard, rolled_back, step, submitted
from tests.support.databases import copy_sqlite
from tests.support.invariants import check_invariants

REPORTS: dict[str, Callable[[Database, Lease, int], object]] = {
    "heartbeat": lambda db, lease, _: heartbeat(db, lease, lease_seconds=60),
    "next step": lambda db, lease, at: record_step(db, lease, step(min(at + 1, 5))),
    "same step": lambda db, lease, at: record_step(db, lease, step(max(at, 1))),
    "checkpoint": lambda db, lease, at: record_checkpoint(db, lease, checkpoint(at, lease.attempt)) if at else None,
    "best checkpoint": lambda db, lease, at: (
        record_checkpoint(db, lease, checkpoint(at, lease.attempt, score=float(at % 3))) if at else None
    ),
    "guard": lambda db, lease, at: record_guard(db, lease, guard(at)),
    "roll back": lambda db, lease, at: record_rollback(db, lease, rolled_back(at, at // 2)),
    "discard": lambda db, lease, at: discard_checkpoint(db, lease, checkpoint(at, lease.attempt).path),
}
ENDS: dict[str, Callable[[Database, Lease, int], object]] = {
    "succeed": lambda db, lease, _: succeed(db, lease),
    "cancelled": lambda db, lease, _: cancelled(db, lease),
    "pause": lambda db, lease, _: end_paused(db, lease, stop_reason="guard", message="a guard"),
    "pause as wished": lambda db, lease, _: end_paused(db, lease, stop_reason=USER_PAUSE, message="the owner"),
    "stop": lambda db, lease, _: end_stopped(db, lease, message="the owner"),
    "fail": lambda db, lease, _: fail(db, lease, ERROR),
    "shut down": lambda db, lease, _: requeue(db, lease, error=None, charge=False),
    "try again": lambda db, lease, _: requeue(db, lease, error=ERROR, charge=True),
}
SURVIVED = ["shut down", "try again", "pause"]
"""Ends after which the history goes on; drawn more often."""


class Repository(RuleBasedStateMachine):
    """Workers that forget, repeat themselves and come back from the dead, over one SQLite file."""

    template: Path

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="ppo-machine-"))
        self.db = Database(copy_sqlite(self.template, self.folder))
        self.job_id = ""
        self.leases: list[Lease] = []

    def teardown(self) -> None:
        self.db.dispose()
        shutil.rmtree(self.folder)

    @initialize()
    def begin(self) -> None:
        self.submit_and_claim()

    @precondition(lambda self: self.ended())
    @rule()
    def begin_anew(self) -> None:
        self.submit_and_claim()

    def submit_and_claim(self) -> None:
        self.job_id = submitted(self.db, retry={"max_attempts": 3}, checkpoint={"keep_last": 1, "keep_best": 1})
        self.leases.clear()
        self.claim()

    def ended(self) -> bool:
        return bool(self.job_id) and get(self.db, ANN, self.job_id).done

    @rule()
    def claim(self) -> None:
        held = claim(self.db, worker_id="w", queues=["default"], lease_seconds=60)
        if held is not None:
            assert held.lease.token > max((lease.token for lease in self.leases), default=0)
            self.leases.append(held.lease)

    @rule(reaped=st.booleans())
    def lose_the_worker(self, reaped: bool) -> None:
        self.skip_time(JobState.RUNNING, lease_expire_time=db_time(-1))
        if reaped:
            reap(self.db)
            self.skip_time(JobState.QUEUED, not_before=db_time())
            self.claim()

    def skip_time(self, state: JobState, **values: Any) -> None:
        with self.db.transaction() as session:
            session.execute(sa.update(Job).where(Job.state == state).values(**values))

    @rule(sure=st.integers(0, 5))
    def cancel(self, sure: int) -> None:
        if sure == 0:  # seldom: it cuts every history short
            with contextlib.suppress(IllegalTransition):
                cancel(self.db, ANN, self.job_id)

    @rule()
    def pause(self) -> None:
        with contextlib.suppress(IllegalTransition):
            pause(self.db, ANN, self.job_id)

    @rule(sure=st.integers(0, 3))
    def stop(self, sure: int) -> None:
        if sure == 0:
            with contextlib.suppress(IllegalTransition):
                stop(self.db, ANN, self.job_id)

    @rule()
    def resume(self) -> None:
        with contextlib.suppress(IllegalTransition):
            resume(self.db, ANN, self.job_id)

    @rule(age=st.integers(0, 3), name=st.sampled_from(sorted(REPORTS)))
    def report(self, age: int, name: str) -> None:
        self.write(self.leases[-1 - min(age, len(self.leases) - 1)], REPORTS[name])

    @rule(age=st.integers(0, 3), name=st.sampled_from([*ENDS, *SURVIVED * 3]))
    def end(self, age: int, name: str) -> None:
        self.write(self.leases[-1 - min(age, len(self.leases) - 1)], ENDS[name])

    def write(self, lease: Lease, write: Callable[[Database, Lease, int], object]) -> None:
        """A write comes through if the claim holds the job; otherwise it is refused, or changes nothing."""
        before = get(self.db, ANN, self.job_id)
        holds = before.state is JobState.RUNNING and lease == self.leases[-1]
        try:
            write(self.db, lease, before.progress.step)
        except LeaseLost:
            assert not holds
        else:
            assert holds or get(self.db, ANN, self.job_id) == before

    @invariant()
    def holds(self) -> None:
        check_invariants(self.db)


@pytest.mark.slow
def test_random_histories(sqlite_template_file: Path) -> None:
    Repository.template = sqlite_template_file
    run_state_machine_as_test(
        Repository,
        settings=settings(
            max_examples=40,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )
