"""`ppo plan`: a page for people, JSON for programs, and an exit code."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from jobs.errors import Problem
from jobs.plan_views import Eta, PlanView, Work
from ppo_client import cli
from ppo_client.client import PPOClient
from ppo_client.commands.exits import Exit
from ppo_client.curves import size
from ppo_client.plan_page import count, show_plan
from ppo_engine.plans import DiskFacts, MemoryFacts, MemoryParts, ModelFacts, PromptFacts, Quantiles, RewardTrial
from tests.support.scripted_http import json_reply, serve

GIB = 2**30
NO_PARTS = dict.fromkeys(MemoryParts.model_fields, 0)
WORK = Work(
    steps=20,
    samples=480,
    minibatches=80,
    optimizer_steps=80,
    response_tokens_max=5760,
    trained_tokens_max=23_040,
    evaluations=0,
    checkpoints=2,
)
GOOD = PlanView(
    ok=True,
    probed=True,
    errors=[],
    warnings=[Problem(pointer="/kl", code="kl_horizon_for_run", detail="it hardly moves", suggestion="Try 480.")],
    model=ModelFacts(
        name="smollm2",
        architecture="LlamaForCausalLM",
        parameters=134_515_008,
        trainable_parameters=4_884_480,
        layers=30,
        hidden_size=576,
        vocabulary=49_152,
        positions=8192,
        file_bytes=None,
        chat_template=True,
    ),
    prompts=PromptFacts(
        count=1200,
        tokenised=1200,
        usable=1190,
        too_long=10,
        empty=0,
        duplicates=3,
        tokens=Quantiles(minimum=3, p05=4, p50=12, p95=30, maximum=41, mean=13.5),
    ),
    rewards=[RewardTrial(name="mood", kind="rule", weight=1.0, shadow=False, tried=16, minimum=-0.5, maximum=0.75)],
    memory=MemoryFacts(
        device="cuda",
        device_name="a GPU",
        precision="bf16",
        processes=2,
        peak_bytes=3 * GIB,
        phase="optimise",
        loading_bytes=GIB,
        rollout_bytes=GIB,
        optimise_bytes=3 * GIB,
        parts=MemoryParts(**NO_PARTS | {"weights_bytes": 2 * GIB, "optimizer_bytes": GIB // 2}),
        device_bytes=80 * GIB,
        available_bytes=70 * GIB,
        fits=True,
    ),
    disk=DiskFacts(checkpoint_bytes=GIB, kept=3, needed_bytes=3 * GIB, free_bytes=40 * GIB),
    work=WORK,
    eta=Eta(known=True, low_seconds=90, high_seconds=4000, seconds_per_step=10, jobs=1, basis="earlier runs"),
)


def page(plan: PlanView, **options: Any) -> str:
    text = io.StringIO()
    show_plan(Console(file=text, width=120, highlight=False, **options), plan)
    return text.getvalue()


def bad(detail: str = "must be above 0") -> PlanView:
    problem = Problem(pointer="/ppo/steps", code="out_of_range", detail=detail)
    return PlanView(ok=False, probed=False, not_probed="the spec has errors", errors=[problem], warnings=[])


def test_the_page_has_every_part_with_units():
    text = page(GOOD)
    for expected in [
        "warning /kl  it hardly moves",
        "Try 480.",
        "LlamaForCausalLM, 135M parameters, 4.88M (3.6%) trained, reads 8,192 tokens",
        "1,200, 3 to 41 tokens (median 12, 95 % up to 30); 10 too long; 3 more than once",
        "20 steps, 480 responses, 80 optimizer steps",
        "at most 5.76k generated, 23k trained on",
        "3 checkpoints of 1.0 GiB: 3.0 GiB; 40.0 GiB free",
        "1m 30s to 1h 06m, from 1 earlier run of this model",
        "3.0 GiB each of 2 processes in phase optimise, of 80.0 GiB (cuda, bf16)",
        "ready to submit, 1 warning",
    ]:
        assert expected in text, text
    assert "kv cache" not in text  # of nothing there is no row
    assert text.index("weights") < text.index("optimizer  ")


def test_colours_are_for_terminals_alone():
    assert "\x1b[" not in page(GOOD)
    assert "\x1b[" in page(GOOD, force_terminal=True, color_system="standard")


def test_what_comes_from_a_spec_cannot_steer_the_terminal():
    text = page(bad("bad \x1b[2J [bold]value[/bold]"))
    assert "\x1b" not in text
    assert "[bold]value[/bold]" in text


@pytest.mark.parametrize(
    ("plan", "code", "line"),
    [(GOOD, Exit.DONE, "ready to submit"), (bad(), Exit.INVALID, "not ready: 1 error")],
    ids=["good", "bad"],
)
def test_the_exit_code_says_whether_it_can_run(monkeypatch, capsys, tmp_path, plan, code, line):
    (tmp_path / "spec.json").write_text('{"name": "x"}')
    for as_json in ([], ["--json"]):
        with serve([json_reply(plan.model_dump(mode="json"))]) as server:
            words = ["ppo", "plan", str(tmp_path / "spec.json"), "--timeout", "7", "--url", server.url, *as_json]
            monkeypatch.setattr(sys, "argv", words)
            with pytest.raises(SystemExit) as caught:
                cli.main()
            (asked,) = server.asked
        out = capsys.readouterr().out
        assert int(caught.value.code or 0) == code
        assert (asked.method, asked.path, json.loads(asked.body)) == (
            "POST",
            "/v1/jobs/plan?timeout=7.0",
            {"name": "x"},
        )
        if as_json:
            assert PlanView.model_validate_json(out) == plan
        else:
            assert line in out


def test_the_client_waits_longer_than_it_asks_the_service_to():
    slow = replace(json_reply(GOOD.model_dump(mode="json")), after_seconds=0.4)
    with serve([slow]) as server:
        with PPOClient(server.url, timeout_seconds=0.2) as client:
            assert client.plan({}, wait_seconds=0) == GOOD
        assert len(server.asked) == 1


@pytest.mark.parametrize(("value", "text"), [(950, "950"), (12_345, "12.3k"), (134_515_008, "135M"), (7.2e9, "7.2B")])
def test_large_numbers_are_short(value: float, text: str):
    assert count(value) == text


def test_bytes_have_units():
    assert (size(3.5 * GIB), size(GIB / 4)) == ("3.5 GiB", "256.0 MiB")
