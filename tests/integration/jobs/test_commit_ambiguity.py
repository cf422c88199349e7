"""A connection that dies during COMMIT: the commit may have been made, and whoever asked must find out.

The error is raised after the real commit and instead of it, at every place where an attempt's fate hangs on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from jobs.db import Database
from jobs.errors import Unavailable
from jobs.lifecycle import (
    Lease,
    cancelled,
    claim,
    fail,
    halve_microbatch,
    pause,
    record_checkpoint,
    record_guard,
    record_rollback,
    record_started,
    record_step,
    requeue,
    succeed,
)
from jobs.service import events, get, metrics, submit
from jobs.states import JobState
from tests.support.attempts import ANN, ERROR, checkpoint, claimed, guard, rolled_back, started, step, submitted
from tests.support.invariants import check_invariants
from tests.support.specs import make_spec
from tests.support.unlucky import Unlucky


@pytest.fixture
def unlucky(database_url: str) -> Iterator[Unlucky]:
    db = Unlucky(database_url)
    yield db
    db.dispose()


def test_a_claim_that_was_made_is_found_again(unlucky: Unlucky) -> None:
    job_id = submitted(unlucky)
    unlucky.next = "made"
    held = claim(unlucky, worker_id="w", queues=["default"], lease_seconds=60)
    assert held is not None
    assert held.lease == Lease(job_id, 1, 1)
    record_step(unlucky, held.lease, step(1))
    check_invariants(unlucky)


def test_a_claim_that_was_not_made_leaves_the_job_in_the_queue(unlucky: Unlucky) -> None:
    job_id = submitted(unlucky)
    unlucky.next = "not made"
    with pytest.raises(Unavailable):
        claim(unlucky, worker_id="w", queues=["default"], lease_seconds=60)
    assert claimed(unlucky).lease == Lease(job_id, 1, 1)


ENDS: list[tuple[Callable[[Database, Lease], None], JobState]] = [
    (succeed, JobState.SUCCEEDED),
    (cancelled, JobState.CANCELLED),
    (lambda db, lease: fail(db, lease, ERROR), JobState.FAILED),
    (lambda db, lease: requeue(db, lease, error=ERROR, charge=True), JobState.QUEUED),
    (lambda db, lease: pause(db, lease, stop_reason="guard", message="a guard"), JobState.PAUSED),
    (lambda db, lease: halve_microbatch(db, lease, error=ERROR, before=4, after=2), JobState.QUEUED),
]


@pytest.mark.parametrize(("end", "state"), ENDS, ids=["succeed", "cancelled", "fail", "requeue", "pause", "halve"])
def test_an_end_that_was_made_counts_once(unlucky: Unlucky, end: Callable[..., None], state: JobState) -> None:
    job_id = submitted(unlucky)
    held = claimed(unlucky)
    unlucky.next = "made"
    end(unlucky, held.lease)
    end(unlucky, held.lease)
    assert get(unlucky, ANN, job_id).state is state
    check_invariants(unlucky)


@pytest.mark.parametrize(("end", "state"), ENDS, ids=["succeed", "cancelled", "fail", "requeue", "pause", "halve"])
def test_an_end_that_was_not_made_can_be_tried_again(
    unlucky: Unlucky, end: Callable[..., None], state: JobState
) -> None:
    job_id = submitted(unlucky)
    held = claimed(unlucky)
    unlucky.next = "not made"
    with pytest.raises(Unavailable):
        end(unlucky, held.lease)
    assert get(unlucky, ANN, job_id).state is JobState.RUNNING
    end(unlucky, held.lease)
    assert get(unlucky, ANN, job_id).state is state


@pytest.mark.parametrize("fault", ["made", "not made"])
def test_reports_are_sent_again_and_stored_once(unlucky: Unlucky, fault: str) -> None:
    job_id = submitted(unlucky)
    held = claimed(unlucky)
    reports: list[Callable[[], object]] = [
        lambda: record_started(unlucky, held.lease, started()),
        lambda: record_step(unlucky, held.lease, step(1)),
        lambda: record_step(unlucky, held.lease, step(2)),
        lambda: record_checkpoint(unlucky, held.lease, checkpoint(2)),
        lambda: record_step(unlucky, held.lease, step(3)),
        lambda: record_guard(unlucky, held.lease, guard(3)),
        lambda: record_rollback(unlucky, held.lease, rolled_back(3, 2)),
    ]
    for report in reports:
        unlucky.next = fault
        with pytest.raises(Unavailable):
            report()
        report()
    assert metrics(unlucky, ANN, job_id).steps == [1, 2]
    told = ["submitted", "claimed", "started", "checkpoint", "guard", "rolled_back"]
    assert [event.type for event in events(unlucky, ANN, job_id)] == told
    check_invariants(unlucky)


def test_a_submit_with_a_key_is_found_again(unlucky: Unlucky) -> None:
    unlucky.next = "made"
    with pytest.raises(Unavailable):
        submit(unlucky, ANN, make_spec(), roots=[], request_id="r1")
    view, created = submit(unlucky, ANN, make_spec(), roots=[], request_id="r1")
    assert not created
    assert get(unlucky, ANN, view.id).state is JobState.QUEUED
