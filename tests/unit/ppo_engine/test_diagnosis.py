"""What a comparison means in words."""

from __future__ import annotations

from typing import Any

import pytest

from ppo_engine.program.comparison import compare_step
from ppo_engine.program.diagnosis import Compared, not_compared, notes_of, verdict
from ppo_engine.verification import RecordedSample, RecordedStep, VerificationWork

SAMPLE = {"prompt": "p", "response": "abc", "response_tokens": 3, "finished": True, "score": 1.0}
HTTP = {"name": "judge", "http": {"url": "https://judge.example/score"}}
LENGTH = {"name": "words", "rule": {"name": "length", "params": {"target": 2}}}


def work(**changes: Any) -> VerificationWork:
    config = {
        "model": {"policy": {"path": "policy"}},
        "prompts": {"inline": ["p"]},
        "rewards": [changes.pop("reward", LENGTH)],
        "ppo": {"steps": 9},
        "resources": {"processes": changes.pop("processes", 1)},
    }
    start = {"step": 4, "folder": "checkpoints/step-00000004-1"}
    facts = {"job_id": "job_1", "config": config, "start": start, "steps": 1, "twice": False, "device": "cpu"}
    return VerificationWork.model_validate({**facts, **changes})


def recorded(*, response: str = "abc", **scalars: float) -> RecordedStep:
    sample = RecordedSample.model_validate({**SAMPLE, "response": response})
    return RecordedStep(step=5, scalars={"kl": 0.5, "time/ppo/total": 1.0, **scalars}, samples=[sample])


def compared(asked: VerificationWork, again: RecordedStep | None, ended: str | None = None) -> Compared:
    steps = [] if again is None else [compare_step(recorded(), again)[0]]
    return Compared(asked, steps, [], ended, [], [])


def test_times_are_no_difference() -> None:
    found = compared(work(), recorded(**{"time/ppo/total": 9.0}))
    assert found.identical
    assert verdict(found) == "Identical: step 5 came out bit for bit as recorded."
    assert [left.what for left in not_compared(found)][-1] == "weights"


@pytest.mark.parametrize(
    ("changes", "codes"),
    [
        ({}, ["arithmetic"]),
        ({"reward": HTTP}, ["reward_asked_again", "arithmetic"]),
        ({"processes": 2}, ["several_processes", "arithmetic"]),
    ],
)
def test_a_difference_has_what_may_explain_it(changes: dict[str, Any], codes: list[str]) -> None:
    found = compared(work(**changes), recorded(response="abd", kl=0.25))
    assert not found.identical
    assert [note.code for note in notes_of(found)] == codes
    assert verdict(found).startswith("Different: `kl` of step 5. ")


def test_a_replay_that_ended_early_is_not_identical() -> None:
    found = compared(work(), None, "guard: kl above 1")
    assert not found.identical
    assert verdict(found) == (
        "Different: only 0 of 1 steps were made again. The replay ended early: guard: kl above 1."
    )


def test_a_number_or_sample_that_is_missing_on_one_side_differs() -> None:
    step, (difference,) = compare_step(recorded(extra=1.0), RecordedStep(step=5, scalars={"kl": 0.5}))
    assert (difference.key, difference.recorded, difference.replayed, difference.absolute) == ("extra", 1.0, None, None)
    assert (step.scalars, step.scalars_differing, step.samples_differing) == (2, 1, 1)
