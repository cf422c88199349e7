"""What the engine reports is stored once, in order, and cleaned of what a database refuses."""

from __future__ import annotations

import pytest

from jobs.db import Database
from jobs.lifecycle import record_checkpoint, record_phase, record_started, record_step
from jobs.service import checkpoints, events, get, live_metrics, metrics, samples
from ppo_engine.events import Phase, PhaseEntered, StepDone
from tests.support.attempts import ANN, checkpoint, claimed, record_steps, sample, started, step, submitted
from tests.support.invariants import check_invariants


def test_a_step_that_comes_twice_is_stored_once(database: Database) -> None:
    job_id = submitted(database)
    held = claimed(database)
    record_steps(database, held, 1, 2)
    record_step(database, held.lease, step(2, **{"ppo/mean_scores": 9.0}))
    view = metrics(database, ANN, job_id, keys=["ppo/mean_scores"])
    assert (view.steps, view.series) == ([1, 2], {"ppo/mean_scores": [0.1, 9.0]})
    assert [row.response for row in samples(database, ANN, job_id).items] == ["2a", "2b"]
    check_invariants(database)


def test_start_and_checkpoint_are_one_event_each_however_often_they_come(database: Database) -> None:
    job_id = submitted(database)
    held = claimed(database)
    for _ in range(3):
        record_started(database, held.lease, started())
    record_steps(database, held, 1, 2)
    for _ in range(3):
        assert record_checkpoint(database, held.lease, checkpoint(2)) == []
    assert [event.type for event in events(database, ANN, job_id)] == ["submitted", "claimed", "started", "checkpoint"]


def test_progress_and_time_left_follow_the_steps(database: Database) -> None:
    job_id = submitted(database)
    held = claimed(database)
    assert get(database, ANN, job_id).progress.eta_seconds is None
    record_phase(database, held.lease, PhaseEntered(phase=Phase.ROLLOUT, step=1))
    record_steps(database, held, 1, 1)
    record_step(database, held.lease, step(2, **{"time/ppo/total": 7.0}))
    view = get(database, ANN, job_id)
    assert (view.phase, view.progress.step, view.progress.steps_total, view.progress.percent) == ("rollout", 2, 5, 40.0)
    assert view.progress.eta_seconds == pytest.approx(3 * (0.8 * 2.0 + 0.2 * 7.0))


def test_old_checkpoints_are_given_up(database: Database) -> None:
    job_id = submitted(database)
    held = claimed(database)
    record_steps(database, held, 1, 5)
    gone = [record_checkpoint(database, held.lease, checkpoint(number)) for number in (1, 2, 3, 4)]
    assert gone == [[], [], ["checkpoints/step-00000001-1"], ["checkpoints/step-00000002-1"]]
    assert [view.step for view in checkpoints(database, ANN, job_id).items] == [3, 4]
    assert get(database, ANN, job_id).last_checkpoint_step == 4


def test_texts_and_numbers_that_no_database_takes_are_cleaned(database: Database) -> None:
    job_id = submitted(database)
    held = claimed(database)
    event = StepDone(
        step=1, scalars={"ppo/mean_scores": float("nan"), "ppo/grad_norm": 1.0}, samples=[sample("a\x00b")]
    )
    record_step(database, held.lease, event)
    assert get(database, ANN, job_id).latest_metrics == {"ppo/grad_norm": 1.0}
    assert samples(database, ANN, job_id).items[0].response == "a\ufffdb"


def test_live_metrics_are_of_running_jobs_only(database: Database) -> None:
    submitted(database)
    running = claimed(database)
    submitted(database)
    record_steps(database, running, 1, 1)
    [live] = live_metrics(database)
    assert (live.job_id, live.owner_id, live.step) == (running.lease.job_id, "ann", 1)
    assert live.scalars["ppo/mean_scores"] == 0.1
