"""`ppo verify-resume`: what is asked, what is shown, and the exit code."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.scripted_http import Reply, serve
from tests.unit.ppo_client.test_client_errands import ppo, reply

SAME = {"step": 5, "identical": True, "scalars": 50, "scalars_differing": 0, "samples": 4, "samples_differing": 0}
OTHER = {
    "step": 6,
    "identical": False,
    "scalars": 50,
    "scalars_differing": 1,
    "samples": 4,
    "samples_differing": 0,
    "differences": [
        {"key": "ppo/loss/policy", "recorded": 0.25, "replayed": 0.5, "absolute": 0.25, "relative": 0.5},
    ],
}
TENSOR = {"name": "value.safetensors:weight", "recorded_sha256": "a", "replayed_sha256": "b", "max_absolute": 0.5}


def found(*, identical: bool) -> Reply:
    steps = [{"differences": [], "sample_differences": [], **step} for step in (SAME, SAME if identical else OTHER)]
    differences: list[Any] = [] if identical else [TENSOR]
    kept = {"step": 6, "identical": identical, "tensors": 9, "tensors_differing": len(differences), "state": []}
    key = {"key": "ppo/loss/policy", "first_step": 6, "steps": 1, "max_absolute": 0.25, "max_relative": 0.5}
    verification = {
        "identical": identical,
        "verdict": "Identical." if identical else "Different: \x1b[31m`ppo/loss/policy` of step 6.",
        "twice": False,
        "from_step": 4,
        "to_step": 6,
        "steps": steps,
        "keys": [] if identical else [key],
        "checkpoints": [{**kept, "differences": differences}],
        "not_compared": [{"what": "time/*", "reason": "it measures the machine"}],
        "notes": [] if identical else [{"code": "arithmetic", "message": "Sums may round otherwise."}],
        "device": "cpu",
        "precision": "fp32",
        "seconds": 3.5,
    }
    return reply(kind="verify_resume", verification=verification)


def test_the_same_is_exit_code_0() -> None:
    with serve([reply("waiting", kind="verify_resume"), found(identical=True)]) as server:
        shown = ppo("verify-resume", "job_01", "--url", server.url)
    assert shown.exit_code == 0, shown.output
    assert server.asked[0].path.startswith("/v1/jobs/job_01/verify-resume?timeout=")
    assert json.loads(server.asked[0].body) == {"steps": 2, "twice": False}
    assert "Identical." in shown.output
    assert "not compared: time/*: it measures the machine" in shown.output


def test_a_difference_is_exit_code_1_and_says_where() -> None:
    with serve([found(identical=False), found(identical=False)]) as server:
        words = ("--step", "4", "--steps", "3", "--twice", "--url", server.url)
        shown, as_json = ppo("verify-resume", "job_01", *words), ppo("verify-resume", "job_01", *words, "--json")
    assert (shown.exit_code, as_json.exit_code) == (1, 1)
    assert json.loads(server.asked[0].body) == {"step": 4, "steps": 3, "twice": True}
    assert "ppo/loss/policy: recorded 0.25, replayed 0.5" in shown.output
    assert "value.safetensors:weight" in shown.output
    assert "note: Sums may round otherwise." in shown.output
    assert "\x1b[31m" not in shown.output
    assert json.loads(as_json.output)["keys"][0]["max_absolute"] == 0.25


@pytest.mark.parametrize("words", [("--steps", "0"), ("--steps", "21"), ("--step", "-1")])
def test_what_cannot_be_asked_is_usage(words: tuple[str, str]) -> None:
    assert ppo("verify-resume", "job_01", *words).exit_code == 2
