"""A run that guards itself: guards are events, a rollback voids what came after, the best checkpoints are kept."""

from __future__ import annotations

import pytest

from jobs.db import Database
from jobs.errors import IllegalTransition, LeaseLost
from jobs.lifecycle import (
    claim,
    pause,
    record_checkpoint,
    record_guard,
    record_rollback,
    record_step,
    succeed,
)
from jobs.service import cancel, checkpoints, events, get, metrics, resume, samples
from jobs.states import JobState
from ppo_engine.events import StepDone
from tests.support.attempts import (
    ANN,
    checkpoint,
    claimed,
    give_back,
    guard,
    job_in,
    record_steps,
    record_steps_and_checkpoint,
    rolled_back,
    sample,
    step,
    submitted,
)
from tests.support.invariants import check_invariants


def test_a_guard_is_one_event_however_often_it_is_reported(database: Database) -> None:
    job_id = submitted(database)
    held = claimed(database)
    record_steps(database, held, 1, 2)
    for _ in range(2):
        record_guard(database, held.lease, guard(2, "warn"))
    cancel(database, ANN, job_id)
    record_guard(database, held.lease, guard(2, "warn"))
    record_guard(database, held.lease, guard(3, "warn", value=float("nan")))
    found = [event for event in events(database, ANN, job_id) if event.type == "guard"]
    assert [event.message for event in found] == ["guard: objective/kl above 25 (warn)"] * 2
    rule = {"rule": "objective/kl above 25", "action": "warn", "metric": "objective/kl", "message": ""}
    assert [event.data for event in found] == [{**rule, "step": 2, "value": 30.0}, {**rule, "step": 3, "value": None}]


def test_a_rollback_voids_what_came_after(database: Database) -> None:
    job_id = submitted(database, checkpoint={"keep_last": 5})
    held = claimed(database)
    for first in (1, 3):
        record_steps_and_checkpoint(database, held, first, first + 1)
    record_steps(database, held, 5, 5)
    record_guard(database, held.lease, guard(5))
    dropped = record_rollback(database, held.lease, rolled_back(5, 2))
    assert dropped == {"checkpoints/step-00000004-1": "0" * 64}
    view = get(database, ANN, job_id)
    assert (view.progress.step, view.last_checkpoint_step) == (2, 2)
    assert view.latest_metrics["ppo/mean_scores"] == pytest.approx(0.2)
    assert metrics(database, ANN, job_id).steps == [1, 2]
    assert {row.step for row in samples(database, ANN, job_id).items} == {2}
    check_invariants(database)
    record_step(database, held.lease, step(3, **{"ppo/mean_scores": 7.0}))
    assert metrics(database, ANN, job_id, keys=["ppo/mean_scores"]).series["ppo/mean_scores"] == [0.1, 0.2, 7.0]
    last = events(database, ANN, job_id)[-1]
    assert (last.type, last.message) == ("rolled_back", "rolled back from step 5 to step 2")
    assert last.data == {"step": 5, "to_step": 2, "learning_rate_factor": 0.5}
    check_invariants(database)


def test_a_rollback_to_the_beginning_keeps_the_evaluation_before_training(database: Database) -> None:
    job_id = submitted(database)
    held = claimed(database)
    record_step(database, held.lease, StepDone(step=0, scalars={"eval/reward_mean": 0.3}))
    record_steps_and_checkpoint(database, held, 1, 2)
    record_rollback(database, held.lease, rolled_back(2, 0))
    view = get(database, ANN, job_id)
    assert (view.progress.step, view.last_checkpoint_step, view.best_checkpoint_step) == (0, None, None)
    assert view.latest_metrics == {"eval/reward_mean": 0.3}
    assert metrics(database, ANN, job_id).steps == [0]
    check_invariants(database)


def test_a_rollback_reported_twice_happens_once_and_a_second_one_again(database: Database) -> None:
    job_id = submitted(database)
    held = claimed(database)
    record_steps_and_checkpoint(database, held, 1, 2)
    record_steps(database, held, 3, 4)
    for _ in range(2):
        record_rollback(database, held.lease, rolled_back(4, 2))
    record_steps(database, held, 3, 4)
    record_rollback(database, held.lease, rolled_back(4, 2, factor=0.25))
    assert [event.type for event in events(database, ANN, job_id)].count("rolled_back") == 2
    assert get(database, ANN, job_id).progress.step == 2


def test_a_stale_attempt_rolls_nothing_back(database: Database) -> None:
    job_id = submitted(database)
    old = claimed(database)
    record_steps_and_checkpoint(database, old, 1, 4)
    give_back(database, old)
    claimed(database)
    for report in (record_rollback, record_guard):
        event = rolled_back(4, 0) if report is record_rollback else guard(4)
        with pytest.raises(LeaseLost):
            report(database, old.lease, event)  # type: ignore[arg-type, operator]
    assert get(database, ANN, job_id).progress.step == 4


def test_an_attempt_after_a_rollback_resumes_from_where_it_went_back_to(database: Database) -> None:
    submitted(database)
    held = claimed(database)
    record_steps_and_checkpoint(database, held, 1, 2)
    record_steps_and_checkpoint(database, held, 3, 4)
    record_rollback(database, held.lease, rolled_back(4, 2))
    record_steps(database, held, 3, 3)
    give_back(database, held)
    assert claimed(database).checkpoint == "checkpoints/step-00000002-1"
    check_invariants(database)


# --- the evaluation before training -------------------------------------------------------------------------------


def test_step_0_is_stored_and_moves_nothing(database: Database) -> None:
    job_id = submitted(database)
    held = claimed(database)
    answer = sample("before").model_copy(update={"evaluation": True})
    for _ in range(2):
        record_step(database, held.lease, StepDone(step=0, scalars={"eval/reward_mean": 0.3}, samples=[answer]))
    view = get(database, ANN, job_id)
    assert (view.progress.step, view.progress.percent, view.progress.eta_seconds) == (0, 0.0, None)
    assert view.latest_metrics == {"eval/reward_mean": 0.3}
    record_steps(database, held, 1, 2)
    view = get(database, ANN, job_id)
    assert view.progress.eta_seconds == pytest.approx(3 * 2.0)
    assert view.latest_metrics == {"eval/reward_mean": 0.3, "ppo/mean_scores": 0.2, "time/ppo/total": 2.0}
    found = metrics(database, ANN, job_id, keys=["eval/reward_mean", "ppo/mean_scores"])
    assert (found.steps, found.series["eval/reward_mean"]) == ([0, 1, 2], [0.3, None, None])
    assert found.series["ppo/mean_scores"] == [None, 0.1, 0.2]
    check_invariants(database)


def test_samples_of_an_evaluation_are_told_apart(database: Database) -> None:
    job_id = submitted(database)
    held = claimed(database)
    answers = [sample("train"), sample("test").model_copy(update={"evaluation": True})]
    record_step(database, held.lease, StepDone(step=1, scalars={}, samples=answers))
    record_steps(database, held, 2, 2)

    def responses(**wanted: bool | int) -> list[tuple[int, str]]:
        return [(row.step, row.response) for row in samples(database, ANN, job_id, **wanted).items]  # type: ignore[arg-type]

    assert responses() == [(2, "2a"), (2, "2b")]
    assert responses(evaluation=True) == [(1, "test")]
    assert responses(evaluation=False, step=1) == [(1, "train")]
    assert [row.evaluation for row in samples(database, ANN, job_id, step=1).items] == [False, True]


def test_going_back_to_a_checkpoint_brings_back_the_evaluation_before_it(database: Database) -> None:
    evaluation = {"prompts": {"inline": ["The concert was"]}, "every_steps": 2}
    job_id = submitted(database, evaluation=evaluation, checkpoint={"keep_last": 5})
    held = claimed(database)
    for number in range(1, 5):
        scalars = {"eval/reward_mean": float(number)} if number % 2 == 0 else {}
        record_step(database, held.lease, step(number, **scalars))
        record_checkpoint(database, held.lease, checkpoint(number))
    record_rollback(database, held.lease, rolled_back(4, 3))
    latest = get(database, ANN, job_id).latest_metrics
    assert (latest["eval/reward_mean"], latest["ppo/mean_scores"]) == (2.0, pytest.approx(0.3))


# --- the best checkpoints -----------------------------------------------------------------------------------------


def test_the_newest_and_the_best_checkpoints_are_kept(database: Database) -> None:
    job_id = submitted(database, ppo__steps=9, checkpoint={"keep_last": 2, "keep_best": 2})
    held = claimed(database)
    record_steps(database, held, 1, 8)
    scores = {1: 1.0, 2: 5.0, 3: 3.0, 4: None, 5: 5.0, 6: 2.0, 7: 0.0, 8: float("nan")}
    dropped = {n: record_checkpoint(database, held.lease, checkpoint(n, score=s)) for n, s in scores.items()}
    gone = [int(path.split("-")[1]) for paths in dropped.values() for path in paths]
    # Worked out by hand: after 5 the best are 2 and 5 (5.0 each), so 1 goes with 4, 3 and 4 with 5 and 6, 6 with 8.
    assert gone == [1, 3, 4, 6]
    kept = [(view.step, view.score) for view in checkpoints(database, ANN, job_id).items]
    assert kept == [(2, 5.0), (5, 5.0), (7, 0.0), (8, None)]
    view = get(database, ANN, job_id)
    assert (view.last_checkpoint_step, view.best_checkpoint_step) == (8, 2)
    check_invariants(database)


def test_a_rollback_can_take_the_best_checkpoint_with_it(database: Database) -> None:
    job_id = submitted(database, checkpoint={"keep_last": 2, "keep_best": 1})
    held = claimed(database)
    for number, score in ((1, 1.0), (2, 0.5), (3, 2.0)):
        record_steps(database, held, number, number)
        record_checkpoint(database, held.lease, checkpoint(number, score=score))
    assert get(database, ANN, job_id).best_checkpoint_step == 3
    record_rollback(database, held.lease, rolled_back(3, 2))
    assert get(database, ANN, job_id).best_checkpoint_step == 2
    check_invariants(database)


# --- pause and resume ---------------------------------------------------------------------------------------------


def test_a_paused_job_waits_and_goes_on_from_its_checkpoint(database: Database) -> None:
    job_id = submitted(database)
    held = claimed(database)
    record_steps_and_checkpoint(database, held, 1, 2)
    for _ in range(2):
        pause(database, held.lease, stop_reason="guard", message="paused at step 2: objective/kl above 25")
    view = get(database, ANN, job_id)
    assert (view.state, view.stop_reason, view.done) == (JobState.PAUSED, "guard", False)
    assert view.allowed_actions == ["cancel", "resume", "fork"]
    assert claim(database, worker_id="w2", queues=["default"], lease_seconds=60) is None
    check_invariants(database)
    for _ in range(2):
        view = resume(database, ANN, job_id)
    assert (view.state, view.stop_reason, view.allowed_actions) == (JobState.QUEUED, None, ["cancel", "pause", "fork"])
    again = claimed(database)
    assert (again.checkpoint, again.lease.attempt) == ("checkpoints/step-00000002-1", 2)
    assert resume(database, ANN, job_id).state is JobState.RUNNING
    succeed(database, again.lease, stop_reason="early_stop", message="ended early at step 2: early_stop")
    view = get(database, ANN, job_id)
    assert (view.state, view.stop_reason) == (JobState.SUCCEEDED, "early_stop")
    told = [(event.type, event.message) for event in events(database, ANN, job_id)]
    assert ("paused", "paused at step 2: objective/kl above 25") in told
    assert [kind for kind, _ in told].count("resumed") == 1
    check_invariants(database, ended=True)


def test_a_paused_job_can_be_cancelled(database: Database) -> None:
    job_id, _ = job_in(database, JobState.PAUSED)
    assert cancel(database, ANN, job_id).state is JobState.CANCELLED
    with pytest.raises(IllegalTransition) as caught:
        resume(database, ANN, job_id)
    assert (caught.value.state, caught.value.allowed_actions) == ("cancelled", ["retry"])
    check_invariants(database, ended=True)


def test_a_pause_after_a_wish_to_cancel_is_a_cancel(database: Database) -> None:
    job_id = submitted(database)
    held = claimed(database)
    cancel(database, ANN, job_id)
    pause(database, held.lease, stop_reason="guard", message="a guard")
    assert get(database, ANN, job_id).state is JobState.CANCELLED
    check_invariants(database, ended=True)
