"""Random histories of the real repository layer: the invariants hold in any order, and a stale token is refused."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from jobs.clock import db_time
from jobs.db import Database
from jobs.errors import IllegalTransition, LeaseLost
from jobs.lifecycle import (
    Claim,
    cancelled,
    claim,
    fail,
    heartbeat,
    reap,
    record_checkpoint,
    record_step,
    requeue,
    succeed,
)
from jobs.service import cancel, get
from jobs.states import JobState
from jobs.tables import Job
from tests.support.attempts import ANN, ERROR, checkpoint, step, submitted
from tests.support.databases import copy_sqlite
from tests.support.invariants import check_invariants


class Repository(RuleBasedStateMachine):
    """Workers that forget, repeat themselves and come back from the dead, over one SQLite file."""

    template: Path

    jobs = Bundle("jobs")
    claims = Bundle("claims")

    @initialize()
    def open(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ppo-machine-"))
        self.db = Database(copy_sqlite(self.template, self.folder))
        self.holders: dict[str, int] = {}

    def teardown(self) -> None:
        if hasattr(self, "db"):
            self.db.dispose()
            shutil.rmtree(self.folder)

    @rule(target=jobs, attempts=st.integers(1, 3))
    def submit(self, attempts: int) -> str:
        return submitted(self.db, ppo__steps=5, retry={"max_attempts": attempts}, checkpoint={"keep_last": 1})

    @rule(target=claims)
    def claim(self) -> Any:
        held = claim(self.db, worker_id="w", queues=["default"], lease_seconds=60)
        if held is None:
            return multiple()
        assert held.lease.token > self.holders.get(held.lease.job_id, 0)
        self.holders[held.lease.job_id] = held.lease.token
        return held

    @rule(job_id=jobs)
    def expire(self, job_id: str) -> None:
        with self.db.transaction() as session:
            this = Job.id == job_id, Job.state == JobState.RUNNING
            session.execute(sa.update(Job).where(*this).values(lease_expire_time=db_time(-1)))
            session.execute(sa.update(Job).where(Job.id == job_id).values(not_before=db_time()))

    @rule()
    def reap(self) -> None:
        for job_id in reap(self.db):
            self.expire(job_id)  # the pause after a failure would hide the job for the rest of the run

    @rule(job_id=jobs)
    def cancel(self, job_id: str) -> None:
        with contextlib.suppress(IllegalTransition):
            cancel(self.db, ANN, job_id)

    @rule(held=claims)
    def heartbeat(self, held: Claim) -> None:
        self.fenced(held, lambda: heartbeat(self.db, held.lease, lease_seconds=60))

    @rule(held=claims, again=st.booleans())
    def next_step(self, held: Claim, again: bool) -> None:
        number = min(5, max(1, get(self.db, ANN, held.lease.job_id).progress.step + (not again)))
        self.fenced(held, lambda: record_step(self.db, held.lease, step(number)))

    @rule(held=claims)
    def save(self, held: Claim) -> None:
        number = get(self.db, ANN, held.lease.job_id).progress.step
        if number:
            saved = checkpoint(number, held.lease.attempt)
            self.fenced(held, lambda: record_checkpoint(self.db, held.lease, saved))

    @rule(held=claims)
    def succeed(self, held: Claim) -> None:
        self.fenced(held, lambda: succeed(self.db, held.lease))

    @rule(held=claims)
    def end_cancelled(self, held: Claim) -> None:
        self.fenced(held, lambda: cancelled(self.db, held.lease))

    @rule(held=claims)
    def fail(self, held: Claim) -> None:
        self.fenced(held, lambda: fail(self.db, held.lease, ERROR))

    @rule(held=claims, charge=st.booleans())
    def requeue(self, held: Claim, charge: bool) -> None:
        self.fenced(held, lambda: requeue(self.db, held.lease, error=ERROR if charge else None, charge=charge))

    def fenced(self, held: Claim, write: Any) -> None:
        """A write comes through if, and only if, the claim still holds the job; or changes nothing."""
        holds = self.holders[held.lease.job_id] == held.lease.token and self.state(held) is JobState.RUNNING
        before = get(self.db, ANN, held.lease.job_id)
        try:
            write()
        except LeaseLost:
            assert not holds
        else:
            assert holds or get(self.db, ANN, held.lease.job_id) == before

    def state(self, held: Claim) -> JobState:
        return get(self.db, ANN, held.lease.job_id).state

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "db"):
            check_invariants(self.db)


@pytest.mark.slow
def test_random_histories(sqlite_template_file: Path) -> None:
    Repository.template = sqlite_template_file
    run_state_machine_as_test(
        Repository,
        settings=settings(
            max_examples=25,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )
