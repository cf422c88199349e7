from __future__ import annotations

from ppo_engine.events import Phase, PhaseEntered, RolledBack, Started, StepDone
from worker.pace import Pace

STARTED = Started(
    step=0, steps_total=9, device="cpu", precision="fp32", parameters=1, trainable_parameters=1, prompts=1
)


def step(number: int) -> StepDone:
    return StepDone(step=number, scalars={})


def pace(**changed: float) -> Pace:
    limits = {"max_runtime_seconds": 1000.0, "loading_seconds": 100.0, "silence_seconds": 20.0, "grace_seconds": 10.0}
    return Pace(started_at=50.0, **{**limits, "spent_seconds": 0.0, **changed})


def test_loading_may_take_longer_than_a_silence_in_training() -> None:
    run = pace()
    assert not run.silent_too_long(150.0)
    assert run.silent_too_long(150.1)
    run.hear(STARTED, 150.0)
    assert not run.silent_too_long(170.0)
    assert run.silent_too_long(170.1)


def test_a_run_with_long_steps_may_be_silent_for_longer() -> None:
    run = pace()
    run.hear(STARTED, 60.0)
    run.hear(step(1), 65.0)
    run.hear(step(2), 66.0)
    assert run.longest_step_seconds == 5.0
    assert not run.silent_too_long(66.0 + 50.0)
    assert run.silent_too_long(66.0 + 50.1)


def test_any_event_is_a_sign_of_life() -> None:
    run = pace()
    run.hear(PhaseEntered(phase=Phase.LOADING, step=0), 149.0)
    assert not run.silent_too_long(249.0)


def test_a_stop_may_finish_the_step_and_then_has_the_grace() -> None:
    run = pace()
    assert run.stop_by(60.0) == 70.0
    run.hear(STARTED, 60.0)
    run.hear(step(1), 63.0)
    assert run.stop_by(64.0) == 64.0 + 3.0 + 10.0


def test_run_time_counts_from_the_start() -> None:
    run = pace(max_runtime_seconds=30.0)
    assert not run.over_time(80.0)
    assert run.over_time(80.1)


def test_run_time_includes_that_of_earlier_attempts() -> None:
    run = pace(max_runtime_seconds=30.0, spent_seconds=20.0)
    assert not run.over_time(60.0)
    assert run.over_time(60.1)


def test_the_time_of_a_rollback_is_no_part_of_a_step() -> None:
    run = pace()
    run.hear(STARTED, 100.0)
    run.hear(step(1), 102.0)
    run.hear(RolledBack(step=1, to_step=0, learning_rate_factor=0.5), 140.0)
    run.hear(step(1), 143.0)
    assert run.longest_step_seconds == 3.0
