"""Advice on specs that can be run: each rule at a spec that needs it and at one that does not."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.advice import advise
from jobs.plan_views import Eta
from jobs.workload import work_of
from ppo_engine.plans import PromptFacts, Quantiles
from tests.support.specs import make_spec

UNKNOWN = Eta(known=False, jobs=0, basis="unknown")
LENGTHS = Quantiles(minimum=1, p05=1, p50=2, p95=3, maximum=3, mean=2.0)
GOOD: dict[str, Any] = {
    "ppo": {"steps": 50, "batch_size": 32, "minibatch_size": 8},
    "generation": {"max_new_tokens": 32},
    "kl": {"adaptive": {"target": 6.0, "horizon": 10_000}},
    "optimizer": {"learning_rate": 1e-5},
    "checkpoint": {"every_steps": 10},
}


def codes(prompts: PromptFacts | None = None, eta: Eta = UNKNOWN, parameters: int | None = None, **overrides: Any):
    spec = make_spec(**GOOD | overrides)
    found = advise(spec, work_of(spec, prompts, None), eta, prompts, parameters)
    assert all(warning.suggestion for warning in found)
    return {warning.pointer: warning.code for warning in found}


def prompts(count: int = 100, **changes: int) -> PromptFacts:
    facts = {"count": count, "tokenised": count, "usable": count, "too_long": 0, "empty": 0, "duplicates": 0}
    return PromptFacts(**facts | changes, tokens=LENGTHS)


def test_a_usual_spec_needs_none():
    assert codes(prompts()) == {}


@pytest.mark.parametrize(
    ("overrides", "pointer", "code"),
    [
        ({"kl": {"adaptive": {"target": 40.0}}}, "/kl/adaptive/target", "kl_target_for_length"),
        ({"kl": {"adaptive": {"target": 0.1}}}, "/kl/adaptive/target", "kl_target_for_length"),
        ({"ppo": {"steps": 2, "batch_size": 32}}, "/kl/adaptive/horizon", "kl_horizon_for_run"),
        ({"optimizer": {"learning_rate": 1e-2}}, "/optimizer/learning_rate", "learning_rate_far_out"),
        ({"optimizer": {"learning_rate": 1e-9}}, "/optimizer/learning_rate", "learning_rate_far_out"),
        ({"ppo": {"steps": 50, "batch_size": 32, "minibatch_size": 5}}, "/ppo/minibatch_size", "uneven_minibatches"),
        ({"ppo": {"steps": 500, "batch_size": 4}}, "/ppo/batch_size", "small_batch"),
        ({"checkpoint": {"every_steps": 1000}}, "/checkpoint/every_steps", "no_checkpoint_on_the_way"),
    ],
)
def test_a_spec_that_needs_it_is_advised(overrides: dict[str, Any], pointer: str, code: str):
    assert codes(**overrides) == {pointer: code}


def test_adapters_and_small_models_bear_higher_rates():
    high = {"learning_rate": 5e-4}
    assert codes(optimizer=high) == {"/optimizer/learning_rate": "learning_rate_far_out"}
    assert codes(optimizer=high, model__lora={"rank": 4}) == {}
    assert codes(optimizer=high, parameters=2_000_000) == {}


def test_a_fixed_or_absent_penalty_has_no_target():
    assert codes(kl={"fixed": {}}, generation={"max_new_tokens": 1}) == {}
    assert codes(kl={"init_kl_coef": 0.0}, generation={"max_new_tokens": 1}) == {}


@pytest.mark.parametrize(
    ("facts", "pointer", "code"),
    [
        (prompts(1601), "/ppo/steps", "prompts_not_covered"),  # 50 steps of 32
        (prompts(too_long=21, usable=79), "/prompts/max_tokens", "prompts_left_out"),
        (prompts(duplicates=21), "/prompts", "duplicate_prompts"),
    ],
)
def test_a_set_that_does_not_suit_the_run_is_pointed_out(facts: PromptFacts, pointer: str, code: str):
    assert codes(facts) == {pointer: code}
    fine = facts.model_copy(update={"count": 1600, "tokenised": 1600, "usable": 1600})
    assert codes(fine) == {}


def test_a_run_that_may_not_last_as_long_as_it_takes_is_pointed_out():
    slow = Eta(known=True, low_seconds=100.5, high_seconds=200, seconds_per_step=3, jobs=1, basis="earlier runs")
    assert codes(eta=slow, resources={"max_runtime_seconds": 100}) == {
        "/resources/max_runtime_seconds": "runtime_too_short"
    }
    assert codes(eta=slow, resources={"max_runtime_seconds": 101}) == {}
