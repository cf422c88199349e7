"""Pause, stop and resume in every state, the order of wishes, and what becomes of a wish when its worker goes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa

from jobs.clock import db_time
from jobs.db import Database
from jobs.errors import IllegalTransition, JobNotFound
from jobs.lifecycle import USER_PAUSE, Claim, claim, heartbeat, reap, requeue, succeed
from jobs.lifecycle import pause as end_paused
from jobs.lifecycle import stop as end_stopped
from jobs.service import cancel, events, get, pause, resume, stop
from jobs.states import JobState
from jobs.tables import Job
from jobs.views import JobView
from tests.support.attempts import ANN, BOB, claimed, give_back, job_in, record_steps_and_checkpoint, submitted
from tests.support.invariants import check_invariants

Verb = Callable[..., JobView]


def told(db: Database, job_id: str) -> list[str]:
    return [event.type for event in events(db, ANN, job_id)]


def wishes(db: Database, held: Claim) -> tuple[bool, bool, bool]:
    heard = heartbeat(db, held.lease, lease_seconds=60)
    return heard.cancel, heard.stop, heard.pause


def running(db: Database) -> tuple[str, Claim]:
    """A job that runs and has a checkpoint of step 2."""
    job_id = submitted(db)
    held = claimed(db, job_id)
    record_steps_and_checkpoint(db, held, 1, 2)
    return job_id, held


def lose_the_worker(db: Database) -> None:
    with db.transaction() as session:
        session.execute(sa.update(Job).where(Job.state == JobState.RUNNING).values(lease_expire_time=db_time(-1)))
    reap(db)


def test_a_queued_job_is_paused_at_once_and_not_claimed(database: Database) -> None:
    job_id = submitted(database)
    for _ in range(2):
        view = pause(database, ANN, job_id)
    assert (view.state, view.stop_reason, view.allowed_actions) == (JobState.PAUSED, "user_pause", ["cancel", "resume"])
    assert claim(database, worker_id="w", queues=["default"], lease_seconds=60) is None
    assert resume(database, ANN, job_id).state is JobState.QUEUED
    assert claimed(database).lease.job_id == job_id
    assert told(database, job_id) == ["submitted", "paused", "resumed", "claimed"]
    check_invariants(database)


def test_a_running_job_is_paused_by_its_worker_and_the_wish_is_over(database: Database) -> None:
    job_id, held = running(database)
    for _ in range(2):
        view = pause(database, ANN, job_id)
    assert (view.state, view.allowed_actions) == (JobState.RUNNING, ["cancel", "pause", "stop", "resume", "fork"])
    assert view.pause_request_time is not None
    assert wishes(database, held) == (False, False, True)
    end_paused(database, held.lease, stop_reason=USER_PAUSE, message="paused by its owner at step 2")
    view = get(database, ANN, job_id)
    assert (view.state, view.pause_request_time) == (JobState.PAUSED, None)
    resume(database, ANN, job_id)
    again = claimed(database)
    assert (again.checkpoint, wishes(database, again)) == (held_path(2), (False, False, False))
    assert told(database, job_id).count("pause_requested") == 1
    check_invariants(database)


def held_path(step: int) -> str:
    return f"checkpoints/step-{step:08d}-1"


def test_a_pause_that_is_taken_back_while_the_step_ends_is_none(database: Database) -> None:
    job_id, held = running(database)
    pause(database, ANN, job_id)
    for _ in range(2):
        assert resume(database, ANN, job_id).state is JobState.RUNNING
    assert wishes(database, held) == (False, False, False)
    end_paused(database, held.lease, stop_reason=USER_PAUSE, message="it had heard the wish already")
    assert get(database, ANN, job_id).state is JobState.QUEUED
    assert told(database, job_id)[-2:] == ["pause_withdrawn", "requeued"]
    check_invariants(database)


def test_a_running_job_is_stopped_well(database: Database) -> None:
    job_id, held = running(database)
    for _ in range(2):
        view = stop(database, ANN, job_id)
    assert (view.state, view.allowed_actions) == (JobState.RUNNING, ["cancel", "stop", "fork"])
    assert wishes(database, held) == (False, True, False)
    for _ in range(2):
        end_stopped(database, held.lease, message="stopped by its owner at step 2")
    for view in (get(database, ANN, job_id), stop(database, ANN, job_id)):
        assert (view.state, view.stop_reason, view.error) == (JobState.SUCCEEDED, "user_stop", None)
    assert told(database, job_id)[-2:] == ["stop_requested", "succeeded"]
    check_invariants(database, ended=True)


IMPOSSIBLE: list[tuple[Verb, JobState]] = [
    *((pause, state) for state in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)),
    *((stop, state) for state in (JobState.QUEUED, JobState.PAUSED, JobState.FAILED, JobState.CANCELLED)),
    *((resume, state) for state in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)),
]


def test_what_a_state_does_not_allow_is_refused_with_what_it_does(database: Database) -> None:
    for verb, state in IMPOSSIBLE:
        job_id, _ = job_in(database, state)
        before = get(database, ANN, job_id)
        with pytest.raises(IllegalTransition) as caught:
            verb(database, ANN, job_id)
        assert (caught.value.state, caught.value.allowed_actions) == (state, before.allowed_actions)
        assert get(database, ANN, job_id) == before
    check_invariants(database)


def test_a_stronger_wish_takes_the_place_of_a_weaker_one_and_not_the_other_way(database: Database) -> None:
    job_id, held = running(database)
    pause(database, ANN, job_id)
    stop(database, ANN, job_id)
    assert wishes(database, held) == (False, True, False)
    with pytest.raises(IllegalTransition, match="being stopped"):
        pause(database, ANN, job_id)
    cancel(database, ANN, job_id)
    for verb in (pause, stop):
        with pytest.raises(IllegalTransition, match="possible now: cancel"):
            verb(database, ANN, job_id)
    end_stopped(database, held.lease, message="the worker had not heard of the cancel")
    assert get(database, ANN, job_id).state is JobState.CANCELLED
    check_invariants(database, ended=True)


def test_cancel_wins_over_a_pause_whichever_comes_first(database: Database) -> None:
    job_id, held = running(database)
    pause(database, ANN, job_id)
    cancel(database, ANN, job_id)
    end_paused(database, held.lease, stop_reason=USER_PAUSE, message="paused")
    assert get(database, ANN, job_id).state is JobState.CANCELLED
    check_invariants(database, ended=True)


def test_a_guard_that_pauses_a_job_to_be_stopped_stops_it(database: Database) -> None:
    job_id, held = running(database)
    stop(database, ANN, job_id)
    end_paused(database, held.lease, stop_reason="guard", message="a guard")
    assert get(database, ANN, job_id).stop_reason == "user_stop"
    check_invariants(database, ended=True)


def test_a_run_that_completed_before_it_heard_of_a_pause_stands(database: Database) -> None:
    job_id, held = running(database)
    pause(database, ANN, job_id)
    succeed(database, held.lease)
    view = get(database, ANN, job_id)
    assert (view.state, view.stop_reason) == (JobState.SUCCEEDED, "completed")
    assert stop(database, ANN, job_id).stop_reason == "completed"
    check_invariants(database, ended=True)


@pytest.mark.parametrize("ends", [lose_the_worker, None], ids=["the worker falls silent", "the worker shuts down"])
def test_a_wish_outlives_its_worker(database: Database, ends: Callable[[Database], None] | None) -> None:
    for verb, state, reason in ((pause, JobState.PAUSED, "user_pause"), (stop, JobState.SUCCEEDED, "user_stop")):
        job_id, held = running(database)
        verb(database, ANN, job_id)
        if ends is None:
            give_back(database, held)
        else:
            ends(database)
        view = get(database, ANN, job_id)
        assert (view.state, view.stop_reason, view.last_checkpoint_step) == (state, reason, 2)
    check_invariants(database)


def test_a_wish_to_stop_waits_for_a_first_checkpoint(database: Database) -> None:
    job_id = submitted(database)
    held = claimed(database, job_id)
    stop(database, ANN, job_id)
    requeue(database, held.lease, error=None, charge=False)
    view = get(database, ANN, job_id)
    assert (view.state, view.allowed_actions) == (JobState.QUEUED, ["cancel", "stop"])
    assert stop(database, ANN, job_id).state is JobState.QUEUED
    assert wishes(database, claimed(database, job_id)) == (False, True, False)
    check_invariants(database)


def test_another_owner_sees_no_job(database: Database) -> None:
    job_id, _ = running(database)
    for verb in (pause, stop, resume):
        with pytest.raises(JobNotFound):
            verb(database, BOB, job_id)


def test_a_pause_and_a_claim_at_once_both_hold(database: Database) -> None:
    """Whoever comes second sees the other: a claimed job has the wish, a paused one is not claimed."""
    ids = [submitted(database) for _ in range(12)]

    def take(_: int) -> Claim | None:
        return claim(database, worker_id="w", queues=["default"], lease_seconds=60)

    with ThreadPoolExecutor(6) as pool:
        paused = [pool.submit(pause, database, ANN, job_id) for job_id in ids]
        taken = {found.lease.job_id for found in pool.map(take, range(12)) if found is not None}
        assert all(future.result() for future in paused)
    for job_id in ids:
        view = get(database, ANN, job_id)
        assert (view.state, view.pause_request_time is not None) in [(JobState.RUNNING, True), (JobState.PAUSED, False)]
        assert (view.state is JobState.RUNNING) == (job_id in taken)
    check_invariants(database)
