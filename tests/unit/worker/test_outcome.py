from __future__ import annotations

from typing import Any

import pytest

from ppo_engine.errors import Category
from ppo_engine.events import Failed, Finished, GuardTripped, Outcome, Phase
from worker.outcome import Ending, Reason, Seen, start_failed, verdict
from worker.process import Exit

COMPLETED = Finished(outcome=Outcome.COMPLETED, step=9)
STOPPED = Finished(outcome=Outcome.STOPPED, step=5)
PAUSED = Finished(outcome=Outcome.PAUSED, step=5, reason="guard")
EARLY = Finished(outcome=Outcome.COMPLETED, step=5, reason="early_stop")
GUARDED = Finished(outcome=Outcome.COMPLETED, step=5, reason="guard")
GUARD = GuardTripped(step=5, rule="objective/kl above 25 for 3 steps", action="pause")
CODE_0, CODE_1, CODE_7 = Exit(0, None), Exit(1, None), Exit(7, None)
KILLED, SEGFAULT, TERMINATED = Exit(None, "SIGKILL"), Exit(None, "SIGSEGV"), Exit(None, "SIGTERM")


def failure(code: str = "non_finite", *, retryable: bool = False) -> Failed:
    return Failed(code=code, category=Category.CONFIG, message="bad", retryable=retryable, step=4, suggestion="do")


HALVABLE = {"microbatch_size": 4, "half_microbatch_size": 2}

CASES: list[tuple[str, dict[str, Any], Ending, str]] = [
    ("completed", {"exit": CODE_0, "final": COMPLETED, "saved_step": 9}, Ending.SUCCEED, ""),
    ("crash at exit, after the end", {"exit": SEGFAULT, "final": COMPLETED, "saved_step": 9}, Ending.SUCCEED, ""),
    (
        "completed just before a cancel",
        {"exit": CODE_0, "final": COMPLETED, "saved_step": 9, "reason": Reason.CANCEL},
        Ending.SUCCEED,
        "",
    ),
    (
        "last checkpoint not recorded",
        {"exit": CODE_0, "final": COMPLETED, "saved_step": 8},
        Ending.FAIL,
        "engine_protocol",
    ),
    ("no checkpoint at all", {"exit": CODE_0, "final": COMPLETED}, Ending.FAIL, "engine_protocol"),
    ("cancelled", {"exit": CODE_0, "final": STOPPED, "reason": Reason.CANCEL}, Ending.CANCEL, ""),
    ("killed in a cancel", {"exit": KILLED, "reason": Reason.CANCEL}, Ending.CANCEL, ""),
    ("failed in a cancel", {"exit": CODE_1, "final": failure(), "reason": Reason.CANCEL}, Ending.CANCEL, ""),
    ("paused", {"exit": CODE_0, "final": STOPPED, "saved_step": 5, "reason": Reason.PAUSE}, Ending.PAUSE, ""),
    ("paused before a step", {"exit": CODE_0, "final": STOPPED, "reason": Reason.PAUSE}, Ending.PAUSE, ""),
    ("killed in a pause", {"exit": KILLED, "saved_step": 4, "reason": Reason.PAUSE}, Ending.PAUSE, ""),
    ("failed in a pause", {"exit": CODE_1, "final": failure(), "reason": Reason.PAUSE}, Ending.FAIL, "non_finite"),
    ("crashed in a pause", {"exit": CODE_7, "reason": Reason.PAUSE}, Ending.REQUEUE, "engine_crashed"),
    (
        "out of memory in a pause",
        {"exit": KILLED, "oom_killed": True, "reason": Reason.PAUSE},
        Ending.REQUEUE,
        "out_of_memory",
    ),
    (
        "completed before a pause",
        {"exit": CODE_0, "final": COMPLETED, "saved_step": 9, "reason": Reason.PAUSE},
        Ending.SUCCEED,
        "",
    ),
    ("stopped", {"exit": CODE_0, "final": STOPPED, "saved_step": 5, "reason": Reason.STOP}, Ending.STOP, ""),
    ("killed in a stop", {"exit": KILLED, "saved_step": 4, "reason": Reason.STOP}, Ending.STOP, ""),
    ("killed before there was anything", {"exit": KILLED, "reason": Reason.STOP}, Ending.RELEASE, ""),
    ("failed in a stop", {"exit": CODE_1, "final": failure(), "reason": Reason.STOP}, Ending.FAIL, "non_finite"),
    ("shut down", {"exit": CODE_0, "final": STOPPED, "reason": Reason.SHUTDOWN}, Ending.RELEASE, ""),
    ("killed in a shutdown", {"exit": KILLED, "reason": Reason.SHUTDOWN}, Ending.RELEASE, ""),
    ("failed by the signal", {"exit": CODE_1, "final": failure(), "reason": Reason.SHUTDOWN}, Ending.RELEASE, ""),
    ("fenced", {"exit": KILLED, "reason": Reason.FENCED}, Ending.RELEASE, ""),
    (
        "over time",
        {"exit": CODE_0, "final": STOPPED, "reason": Reason.MAX_RUNTIME},
        Ending.FAIL,
        "max_runtime_exceeded",
    ),
    ("hung", {"exit": KILLED, "reason": Reason.HUNG}, Ending.REQUEUE, "engine_hung"),
    ("garbage", {"exit": KILLED, "reason": Reason.PROTOCOL}, Ending.FAIL, "engine_protocol"),
    (
        "garbage after the end",
        {"exit": KILLED, "final": COMPLETED, "saved_step": 9, "reason": Reason.PROTOCOL},
        Ending.FAIL,
        "engine_protocol",
    ),
    ("an error of the spec", {"exit": CODE_1, "final": failure()}, Ending.FAIL, "non_finite"),
    ("an error worth a retry", {"exit": CODE_1, "final": failure(retryable=True)}, Ending.REQUEUE, "non_finite"),
    (
        "damaged checkpoint",
        {"exit": CODE_1, "final": failure("checkpoint_corrupt", retryable=True), "resumed": True},
        Ending.DISCARD,
        "checkpoint_corrupt",
    ),
    (
        "damaged checkpoint, but none was given",
        {"exit": CODE_1, "final": failure("checkpoint_corrupt", retryable=True)},
        Ending.REQUEUE,
        "checkpoint_corrupt",
    ),
    ("killed", {"exit": KILLED}, Ending.REQUEUE, "engine_killed"),
    ("terminated before it could listen", {"exit": TERMINATED}, Ending.REQUEUE, "engine_killed"),
    ("killed by the kernel", {"exit": KILLED, "oom_killed": True}, Ending.REQUEUE, "out_of_memory"),
    (
        "killed by the kernel with a microbatch to halve",
        {"exit": KILLED, "oom_killed": True, "phase": Phase.OPTIMISE, **HALVABLE},
        Ending.HALVE,
        "out_of_memory",
    ),
    (
        "one of its processes killed by the kernel",
        {
            "exit": CODE_1,
            "final": failure("process_lost", retryable=True),
            "phase": Phase.OPTIMISE,
            **HALVABLE,
            "oom_killed": True,
        },
        Ending.HALVE,
        "out_of_memory",
    ),
    (
        "one of its processes lost otherwise",
        {"exit": CODE_1, "final": failure("process_lost", retryable=True), "phase": Phase.OPTIMISE, **HALVABLE},
        Ending.REQUEUE,
        "process_lost",
    ),
    (
        "killed by the kernel while loading",
        {"exit": KILLED, "oom_killed": True, "phase": Phase.LOADING, **HALVABLE},
        Ending.REQUEUE,
        "out_of_memory",
    ),
    (
        "no memory",
        {"exit": CODE_1, "final": failure("out_of_memory"), "phase": Phase.ROLLOUT, **HALVABLE},
        Ending.HALVE,
        "out_of_memory",
    ),
    (
        "no memory for one sequence to learn from",
        {"exit": CODE_1, "final": failure("out_of_memory"), "phase": Phase.OPTIMISE, "can_split": True},
        Ending.FAIL,
        "out_of_memory",
    ),
    (
        "no memory for all responses at once",
        {"exit": CODE_1, "final": failure("out_of_memory"), "phase": Phase.ROLLOUT, "can_split": True},
        Ending.HALVE,
        "out_of_memory",
    ),
    (
        "no memory for half of the responses",
        {"exit": CODE_1, "final": failure("out_of_memory"), "phase": Phase.ROLLOUT},
        Ending.FAIL,
        "out_of_memory",
    ),
    (
        "no memory for the models",
        {"exit": CODE_1, "final": failure("out_of_memory"), "phase": Phase.LOADING, **HALVABLE},
        Ending.FAIL,
        "out_of_memory",
    ),
    (
        "no memory a second time",
        {"exit": CODE_1, "final": failure("out_of_memory"), "phase": Phase.OPTIMISE, "microbatch_size": 4},
        Ending.FAIL,
        "out_of_memory",
    ),
    (
        "no memory in a cancel",
        {"exit": CODE_1, "final": failure("out_of_memory"), "reason": Reason.CANCEL, **HALVABLE},
        Ending.CANCEL,
        "",
    ),
    ("crashed while another was killed", {"exit": SEGFAULT, "oom_killed": True}, Ending.REQUEUE, "engine_crashed"),
    ("segmentation fault", {"exit": SEGFAULT}, Ending.REQUEUE, "engine_crashed"),
    ("exit code", {"exit": CODE_7}, Ending.REQUEUE, "engine_crashed"),
    ("exit 0 without a word", {"exit": CODE_0}, Ending.FAIL, "engine_protocol"),
    ("a guard's pause", {"exit": CODE_0, "final": PAUSED, "saved_step": 5}, Ending.PAUSE, ""),
    (
        "a pause in a shutdown",
        {"exit": CODE_0, "final": PAUSED, "saved_step": 5, "reason": Reason.SHUTDOWN},
        Ending.PAUSE,
        "",
    ),
    (
        "a pause over time",
        {"exit": CODE_0, "final": PAUSED, "saved_step": 5, "reason": Reason.MAX_RUNTIME},
        Ending.PAUSE,
        "",
    ),
    (
        "a pause in a cancel",
        {"exit": CODE_0, "final": PAUSED, "saved_step": 5, "reason": Reason.CANCEL},
        Ending.CANCEL,
        "",
    ),
    ("a pause behind its checkpoint", {"exit": CODE_0, "final": PAUSED, "saved_step": 4}, Ending.PAUSE, ""),
    (
        "garbage after a pause",
        {"exit": KILLED, "final": PAUSED, "saved_step": 5, "reason": Reason.PROTOCOL},
        Ending.FAIL,
        "engine_protocol",
    ),
    ("ended early", {"exit": CODE_0, "final": EARLY, "saved_step": 5}, Ending.SUCCEED, ""),
    ("stopped by nobody we know", {"exit": CODE_0, "final": STOPPED}, Ending.REQUEUE, "engine_stopped"),
]


@pytest.mark.parametrize(("seen", "ending", "code"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_verdict(seen: dict[str, Any], ending: Ending, code: str) -> None:
    judged = verdict(Seen(attempt=2, **seen))
    assert (judged.ending, judged.code) == (ending, code)


def test_a_crash_says_where_and_how() -> None:
    seen = Seen(attempt=2, exit=CODE_7, phase=Phase.OPTIMISE, step=4, log_tail="last words")
    error = verdict(seen).error
    assert error is not None
    assert (error.exit_code, error.signal, error.phase, error.step, error.attempt) == (7, None, "optimise", 4, 2)
    assert error.log_tail == "last words"
    assert "exit code 7" in error.message


def test_the_engines_own_error_is_passed_on() -> None:
    seen = Seen(attempt=1, exit=CODE_1, final=failure(), phase=Phase.ROLLOUT, step=3)
    error = verdict(seen).error
    assert error is not None
    assert (error.category, error.message, error.suggestion) == ("config", "bad", "do")
    assert (error.phase, error.step, error.exit_code) == ("rollout", 4, 1)


def test_an_engine_that_cannot_be_started_is_tried_again() -> None:
    judged = start_failed(FileNotFoundError(2, "No such file or directory"), attempt=3)
    assert judged.ending is Ending.REQUEUE
    assert judged.error is not None
    assert "No such file" in judged.error.message
    assert judged.error.attempt == 3


@pytest.mark.parametrize(
    ("final", "stop_reason", "message"),
    [
        (PAUSED, "guard", "paused at step 5: objective/kl above 25 for 3 steps"),
        (GUARDED, "guard", "ended early at step 5: objective/kl above 25 for 3 steps"),
        (EARLY, "early_stop", "ended early at step 5: early_stop"),
        (Finished(outcome=Outcome.COMPLETED, step=5), "completed", ""),
        (Finished(outcome=Outcome.PAUSED, step=5), "guard", "paused at step 5: objective/kl above 25 for 3 steps"),
    ],
)
def test_an_end_before_the_last_step_says_why(final: Finished, stop_reason: str, message: str) -> None:
    judged = verdict(Seen(attempt=1, exit=CODE_0, final=final, guard=GUARD, saved_step=5))
    assert (judged.stop_reason, judged.message) == (stop_reason, message)


def test_a_pause_behind_its_checkpoint_says_where_it_goes_on() -> None:
    judged = verdict(Seen(attempt=1, exit=CODE_0, final=PAUSED, guard=GUARD, saved_step=4))
    assert judged.message == "paused at step 5: objective/kl above 25 for 3 steps; it goes on from step 4"
