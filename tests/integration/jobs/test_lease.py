"""The lease: one holder, a fence for all others, and a way back when the holder is gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from jobs.clock import db_time
from jobs.db import Database
from jobs.ending import backoff_seconds
from jobs.errors import LeaseLost
from jobs.lifecycle import (
    Lease,
    cancelled,
    claim,
    discard_checkpoint,
    due_wakeups,
    fail,
    heartbeat,
    reap,
    record_checkpoint,
    record_phase,
    record_started,
    record_step,
    requeue,
    succeed,
)
from jobs.service import cancel, events, get, metrics, samples
from jobs.states import JobState
from jobs.tables import Job, JobAttempt
from ppo_engine.events import Phase, PhaseEntered
from tests.support.attempts import (
    ANN,
    ERROR,
    checkpoint,
    claimed,
    give_back,
    record_steps,
    record_steps_and_checkpoint,
    started,
    step,
    submitted,
)
from tests.support.invariants import check_invariants

WRITES: dict[str, Callable[[Database, Lease], Any]] = {
    "heartbeat": lambda db, lease: heartbeat(db, lease, lease_seconds=60),
    "started": lambda db, lease: record_started(db, lease, started()),
    "phase": lambda db, lease: record_phase(db, lease, PhaseEntered(phase=Phase.ROLLOUT, step=1)),
    "step": lambda db, lease: record_step(db, lease, step(1)),
    "checkpoint": lambda db, lease: record_checkpoint(db, lease, checkpoint(1)),
    "discard": lambda db, lease: discard_checkpoint(db, lease, "checkpoints/step-00000002-1"),
    "succeed": succeed,
    "cancelled": cancelled,
    "fail": lambda db, lease: fail(db, lease, ERROR),
    "requeue": lambda db, lease: requeue(db, lease, error=None, charge=False),
}


def expire(db: Database, job_id: str) -> None:
    """Let the lease run out now."""
    with db.transaction() as session:
        session.execute(sa.update(Job).where(Job.id == job_id).values(lease_expire_time=db_time(-1)))


def rows(db: Database) -> list[tuple[Any, ...]]:
    """Everything stored of all jobs."""
    with db.read() as session:
        tables = [table for name, table in sorted(Job.metadata.tables.items()) if name.startswith("job")]
        return [
            tuple(row) for table in tables for row in session.execute(sa.select(table).order_by(*table.primary_key))
        ]


# --- claim --------------------------------------------------------------------------------------------------------


def test_a_claim_takes_the_highest_priority_then_the_oldest(database: Database) -> None:
    low = submitted(database, resources={"priority": -1})
    first, second = submitted(database), submitted(database)
    high = submitted(database, resources={"priority": 5})
    submitted(database, resources={"queue": "gpu", "priority": 100})
    assert [claimed(database).lease.job_id for _ in range(4)] == [high, first, second, low]
    assert claim(database, worker_id="w", queues=["default"], lease_seconds=60) is None


def test_a_claim_by_id_takes_that_job_or_nothing(database: Database) -> None:
    first, second = submitted(database), submitted(database, resources={"queue": "gpu"})
    assert claim(database, worker_id="w", queues=["default"], lease_seconds=60, job_id=second) is None
    assert claimed(database, first).lease == Lease(first, token=1, attempt=1)
    assert claim(database, worker_id="w", queues=["default"], lease_seconds=60, job_id=first) is None


def test_a_claim_shows_in_the_job(database: Database) -> None:
    job_id = submitted(database)
    held = claimed(database, worker_id="host-1")
    view = get(database, ANN, job_id)
    assert (view.state, view.attempt, view.queue) == (JobState.RUNNING, 1, None)
    assert view.start_time is not None
    assert (held.owner_id, held.spec.name, held.checkpoint) == ("ann", "small", None)
    newest = events(database, ANN, job_id)[-1]
    assert (newest.type, newest.data) == ("claimed", {"worker_id": "host-1"})


def test_a_job_waits_until_its_time(database: Database) -> None:
    job_id = submitted(database)
    requeue(database, claimed(database).lease, error=ERROR, charge=True, delay_seconds=3600)
    assert claim(database, worker_id="w", queues=["default"], lease_seconds=60) is None
    queue = get(database, ANN, job_id).queue
    assert queue is not None
    assert queue.reason.startswith("tried again after")


def test_a_claim_knows_how_long_earlier_attempts_held_the_job(database: Database) -> None:
    submitted(database)
    first = claimed(database)
    assert first.spent_seconds == 0
    with database.transaction() as session:
        session.execute(sa.update(JobAttempt).values(start_time=db_time(-100)))
    requeue(database, first.lease, error=None, charge=False)
    assert 100 <= claimed(database).spent_seconds < 160


def test_a_spec_that_nobody_can_read_fails_and_does_not_block_the_queue(database: Database) -> None:
    broken, sound = submitted(database), submitted(database)
    with database.transaction() as session:
        session.execute(sa.update(Job).where(Job.id == broken).values(spec={"of": "another version"}))
    assert claim(database, worker_id="w", queues=["default"], lease_seconds=60) is None
    assert claimed(database).lease.job_id == sound
    view = get(database, ANN, broken)
    assert view.state is JobState.FAILED
    assert view.error is not None
    assert view.error.code == "spec_unreadable"


# --- fence --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WRITES)
def test_a_stale_token_writes_nothing(database: Database, name: str) -> None:
    job_id = submitted(database)
    stale = claimed(database)
    record_steps_and_checkpoint(database, stale, 1, 2)
    expire(database, job_id)
    assert reap(database) == [job_id]
    claimed(database, worker_id="w2")

    before = rows(database)
    with pytest.raises(LeaseLost):
        WRITES[name](database, stale.lease)
    assert rows(database) == before
    check_invariants(database)


@pytest.mark.parametrize("name", WRITES)
def test_nothing_is_written_after_the_end(database: Database, name: str) -> None:
    submitted(database)
    held = claimed(database)
    record_steps_and_checkpoint(database, held, 1, 2)
    fail(database, held.lease, ERROR)

    before = rows(database)
    if name in ("fail", "requeue"):
        WRITES[name](database, held.lease)  # the attempt has ended as such a call ends it: saying so twice is fine
    else:
        with pytest.raises(LeaseLost):
            WRITES[name](database, held.lease)
    assert rows(database) == before
    check_invariants(database, ended=True)


def test_a_heartbeat_extends_the_lease_and_brings_the_wish(database: Database) -> None:
    job_id = submitted(database)
    held = claimed(database)
    expire(database, job_id)
    assert not heartbeat(database, held.lease, lease_seconds=60).cancel
    assert reap(database) == []
    cancel(database, ANN, job_id)
    assert heartbeat(database, held.lease, lease_seconds=60).cancel


# --- reaper -------------------------------------------------------------------------------------------------------


def test_the_reaper_leaves_live_leases_alone(database: Database) -> None:
    submitted(database)
    claimed(database)
    assert reap(database) == []


def test_the_reaper_requeues_then_fails_and_charges_every_attempt(database: Database) -> None:
    job_id = submitted(database, retry={"max_attempts": 2})
    claimed(database)
    expire(database, job_id)
    assert reap(database) == [job_id]
    view = get(database, ANN, job_id)
    assert (view.state, view.error and view.error.code) == (JobState.QUEUED, "worker_lost")

    claimed(database)
    expire(database, job_id)
    assert reap(database) == [job_id]
    assert get(database, ANN, job_id).state is JobState.FAILED
    assert reap(database) == []
    check_invariants(database, ended=True)


def test_the_reaper_cancels_what_should_be_cancelled(database: Database) -> None:
    job_id = submitted(database)
    claimed(database)
    cancel(database, ANN, job_id)
    expire(database, job_id)
    reap(database)
    assert get(database, ANN, job_id).state is JobState.CANCELLED
    check_invariants(database, ended=True)


def test_waiting_grows_with_the_failures() -> None:
    assert [backoff_seconds(n) for n in (0, 1, 2, 3, 4)] == [0, 0, 10, 20, 40]
    assert backoff_seconds(99) == 600


# --- ends ---------------------------------------------------------------------------------------------------------


def test_a_shutdown_charges_no_attempt(database: Database) -> None:
    job_id = submitted(database, retry={"max_attempts": 1})
    for _ in range(3):
        give_back(database, claimed(database))
    view = get(database, ANN, job_id)
    assert (view.state, view.attempt, view.error) == (JobState.QUEUED, 3, None)
    check_invariants(database)


def test_charged_attempts_run_out(database: Database) -> None:
    job_id = submitted(database, retry={"max_attempts": 2})
    give_back(database, claimed(database), charge=True)
    assert get(database, ANN, job_id).state is JobState.QUEUED
    give_back(database, claimed(database), charge=True)
    view = get(database, ANN, job_id)
    assert (view.state, view.error and view.error.code) == (JobState.FAILED, ERROR.code)
    check_invariants(database, ended=True)


def test_success_clears_the_error_of_an_earlier_attempt(database: Database) -> None:
    job_id = submitted(database)
    give_back(database, claimed(database), charge=True)
    assert get(database, ANN, job_id).error is not None
    succeed(database, claimed(database).lease)
    view = get(database, ANN, job_id)
    assert (view.state, view.stop_reason, view.error, view.done) == (JobState.SUCCEEDED, "completed", None, True)
    assert view.allowed_actions == []


def test_an_error_is_stored_without_secrets(database: Database) -> None:
    submitted(database)
    held = claimed(database)
    secret = "ppo_" + "k" * 43
    fail(database, held.lease, ERROR.model_copy(update={"message": f"key {secret}", "log_tail": f"\x00 {secret}"}))
    assert secret not in repr(rows(database))


# --- resume -------------------------------------------------------------------------------------------------------


def test_a_claim_resumes_from_the_newest_checkpoint_and_forgets_what_came_after(database: Database) -> None:
    job_id = submitted(database)
    held = claimed(database)
    record_steps_and_checkpoint(database, held, 1, 2)
    record_steps(database, held, 3, 4)
    give_back(database, held)

    again = claimed(database)
    assert again.checkpoint == "checkpoints/step-00000002-1"
    view = get(database, ANN, job_id)
    assert (view.progress.step, view.latest_metrics["ppo/mean_scores"]) == (2, 0.2)
    assert metrics(database, ANN, job_id).steps == [1, 2]
    assert [view.step for view in samples(database, ANN, job_id).items] == [2, 2]

    record_steps(database, again, 3, 5)
    assert metrics(database, ANN, job_id).steps == [1, 2, 3, 4, 5]
    check_invariants(database)


def test_a_job_without_a_checkpoint_starts_anew(database: Database) -> None:
    job_id = submitted(database)
    held = claimed(database)
    record_steps(database, held, 1, 3)
    give_back(database, held)
    assert claimed(database).checkpoint is None
    view = get(database, ANN, job_id)
    assert (view.progress.step, view.latest_metrics, metrics(database, ANN, job_id).steps) == (0, {}, [])


def test_a_damaged_checkpoint_is_forgotten_for_the_one_before(database: Database) -> None:
    job_id = submitted(database)
    held = claimed(database)
    record_steps_and_checkpoint(database, held, 1, 2)
    record_steps_and_checkpoint(database, held, 3, 4)
    give_back(database, held)

    again = claimed(database)
    assert again.checkpoint == "checkpoints/step-00000004-1"
    assert discard_checkpoint(database, again.lease, again.checkpoint) == "checkpoints/step-00000002-1"
    assert get(database, ANN, job_id).progress.step == 2
    record_steps_and_checkpoint(database, again, 3, 4)
    assert discard_checkpoint(database, again.lease, "checkpoints/step-00000004-2") == "checkpoints/step-00000002-1"
    assert discard_checkpoint(database, again.lease, "checkpoints/step-00000002-1") is None
    assert get(database, ANN, job_id).last_checkpoint_step is None
    check_invariants(database)


# --- wake-ups -----------------------------------------------------------------------------------------------------


def test_a_queued_job_is_woken_once_in_a_while(database: Database) -> None:
    first, second = submitted(database), submitted(database, resources={"queue": "gpu"})
    assert due_wakeups(database, every_seconds=3600) == [(first, "default"), (second, "gpu")]
    assert due_wakeups(database, every_seconds=3600) == []


def test_wake_ups_come_again_in_portions_and_end_with_the_claim(database: Database) -> None:
    ids = [submitted(database) for _ in range(3)]
    assert len(due_wakeups(database, every_seconds=0, limit=2)) == 2
    assert sorted(job for job, _ in due_wakeups(database, every_seconds=0)) == ids
    claimed(database, ids[0])
    assert sorted(job for job, _ in due_wakeups(database, every_seconds=0)) == ids[1:]


def test_a_requeued_job_is_woken_when_its_time_has_come(database: Database) -> None:
    job_id = submitted(database)
    due_wakeups(database, every_seconds=3600)
    held = claimed(database)
    requeue(database, held.lease, error=None, charge=False, delay_seconds=3600)
    assert due_wakeups(database, every_seconds=0) == []
    with database.transaction() as session:
        session.execute(sa.update(Job).where(Job.id == job_id).values(not_before=db_time()))
    requeue(database, claimed(database).lease, error=None, charge=False)
    assert due_wakeups(database, every_seconds=0) == [(job_id, "default")]
