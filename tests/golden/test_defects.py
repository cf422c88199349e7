"""What TRL 0.11.4 got wrong and we do not: each test fails on the defective behaviour."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch

from ppo_engine.batch import make_sequences
from ppo_engine.config import TrainConfig, ValueHeadInit, cross_checks
from ppo_engine.errors import NonFinite
from ppo_engine.maths.advantages import gae
from ppo_engine.maths.masked import whiten
from ppo_engine.models.policy import Policy
from ppo_engine.summary import Stopwatch
from ppo_engine.update.targets import advantages
from tests.golden.replay import PAD_ID, cases, load, make_trainer, replay_step
from tests.support.tolerances import MATH, assert_close, golden


def case(variant: str, base: str = "gpt2") -> dict[str, Any]:
    return next(c for c in cases() if c["variant"] == variant and c["base"] == base)


def weights(trainer: Any) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in trainer.models.policy.named_parameters()}


def moved(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> float:
    return max(float((after[name] - before[name]).abs().max()) for name in before)


def with_step(step: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return copy.deepcopy(step) | changes


def test_gradient_norm_is_clipped_on_every_optimizer_step() -> None:
    trainer = make_trainer(case("default"))
    stepper = trainer.optimiser.stepper
    parameters = list(trainer.models.policy.parameters())
    norms = []

    class Recording:
        def __getattr__(self, name: str) -> Any:
            return getattr(stepper.optimizer, name)

        def step(self) -> None:
            norms.append(math.sqrt(sum(float(p.grad.square().sum()) for p in parameters if p.grad is not None)))

    clipping = type(stepper)(stepper.accelerator, Recording(), stepper.weights, 1e-3)  # type: ignore[arg-type]
    object.__setattr__(trainer.optimiser, "stepper", clipping)
    replay_step(trainer, case("default")["steps"][0])
    assert norms == [pytest.approx(1e-3, rel=1e-2)] * 4


def test_whitened_rewards_do_not_depend_on_padding() -> None:
    rewards, values = torch.tensor([[0.5, -0.2, 1.0]]), torch.tensor([[0.1, 0.3, 0.2]])
    wide = torch.nn.functional.pad
    results = []
    for padding in (0, 20):
        mask = wide(torch.ones(1, 3, dtype=torch.bool), (0, padding))
        whitened = whiten(wide(rewards, (0, padding)), mask, shift_mean=False)
        _, returns = gae(whitened, wide(values, (0, padding)), mask, gamma=1.0, lam=0.95)
        results.append(returns[:, :3])
    assert torch.equal(results[0], results[1])


def test_a_skipped_update_leaves_the_weights_alone_under_a_warm_adam() -> None:
    trainer = make_trainer(case("default"))
    replay_step(trainer, case("default")["steps"][0])
    rules = trainer.optimiser.rules
    object.__setattr__(rules, "ratio_threshold", 1e-3)
    before = weights(trainer)
    stats = replay_step(trainer, case("default")["steps"][1])
    assert moved(before, weights(trainer)) == 0.0
    assert stats["ppo/skipped_updates"] == 4
    assert "ppo/grad_norm" not in stats


def test_an_exploded_ratio_skips_the_update_instead_of_destroying_the_model() -> None:
    trainer = make_trainer(case("default"))
    step = case("default")["steps"][0]
    sequences = make_sequences(step["queries"], step["responses"], pad_id=PAD_ID)
    batch = trainer._evaluate(sequences, step["scores"], [False] * 4, None, Stopwatch())
    object.__setattr__(batch, "old_logprobs", batch.old_logprobs - 200.0)
    before = weights(trainer)
    targets = advantages(batch, trainer.config.ppo)
    record = trainer.optimiser.run(batch, targets, trainer._permutation, kl_coef=0.2)
    assert record.skipped == len(record.updates) == 4
    assert moved(before, weights(trainer)) == 0.0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_score_that_is_not_finite_never_reaches_a_weight(bad: float) -> None:
    trainer = make_trainer(case("default"))
    before = weights(trainer)
    step = case("default")["steps"][0]
    with pytest.raises(NonFinite):
        replay_step(trainer, with_step(step, scores=[bad, *step["scores"][1:]]))
    assert moved(before, weights(trainer)) == 0.0


def test_a_gradient_that_is_not_finite_never_reaches_a_weight() -> None:
    trainer = make_trainer(case("default"))
    before = weights(trainer)
    head = trainer.models.policy.value_head.weight
    head.register_hook(lambda gradient: gradient * math.nan)
    with pytest.raises(NonFinite):
        replay_step(trainer, case("default")["steps"][0])
    assert moved(before, weights(trainer)) == 0.0


@pytest.mark.parametrize("scaling", ["scale", "normalise"])
def test_scores_can_be_scaled(scaling: str) -> None:
    trainer = make_trainer(case("default"), score_scaling=scaling)
    step = case("default")["steps"][0]
    stats = replay_step(trainer, step)
    raw = torch.tensor(step["scores"], dtype=torch.float64)
    wanted = raw / raw.std() if scaling == "scale" else (raw - raw.mean()) / raw.std()
    assert stats["ppo/mean_scores"] == golden(float(wanted.mean()))
    assert stats["ppo/std_scores"] == golden(float(wanted.std()))


def test_a_config_of_defaults_can_be_built() -> None:
    least = {
        "model": {"policy": {"path": "p"}},
        "prompts": {"inline": ["a"]},
        "rewards": [{"name": "s", "rule": {"name": "sentiment"}}],
        "ppo": {"steps": 1},
    }
    config = TrainConfig.model_validate(least)
    assert cross_checks(config) == []
    assert config.microbatch_size == config.minibatch_size == config.ppo.batch_size


def test_a_single_response_token_trains_without_nan() -> None:
    trainer = make_trainer(case("default"), batch_size=1, minibatch_size=1)
    before = weights(trainer)
    sequences = make_sequences([[1, 2, 3]], [[4]], pad_id=PAD_ID)
    scalars = trainer.scalars(trainer.update(sequences, [1.0]))
    assert moved(before, weights(trainer)) > 0.0
    assert all(math.isfinite(value) for value in scalars.values())
    assert not {"ppo/std_scores", "ppo/returns/var", "tokens/queries_len_std"} & set(scalars)


def test_batch_sizes_need_not_divide() -> None:
    trainer = make_trainer(case("default"), batch_size=4, minibatch_size=3, microbatch_size=2)
    stats = replay_step(trainer, case("default")["steps"][0])
    assert stats["ppo/epochs_run"] == 2
    assert all(math.isfinite(value) for value in stats.values())


@pytest.mark.parametrize("base", ["gpt2", "llama"])
def test_left_padding_does_not_change_logprobs_or_values(base: str) -> None:
    policy = Policy(load(base), ValueHeadInit.NORMAL)
    trainer = make_trainer(case("default", base))
    prompts, responses = [[5, 6], [7, 8, 9, 10, 11, 12, 13]], [[14, 15, 16], [17, 18]]
    together = policy(make_sequences(prompts, responses, pad_id=PAD_ID), trainer.distribution)
    for i in range(2):
        alone = policy(make_sequences(prompts[i : i + 1], responses[i : i + 1], pad_id=PAD_ID), trainer.distribution)
        width = len(responses[i])
        for ours, theirs in zip(together[:3], alone[:3], strict=True):
            assert_close(ours[i, :width], theirs[0].detach(), MATH * 10)


@pytest.mark.parametrize("microbatch_size", [1, 2, 3])
def test_numbers_do_not_depend_on_the_split_into_microbatches(microbatch_size: int) -> None:
    """The second step's numbers come from the weights after the first, so they compare the weights too."""
    whole = make_trainer(case("default"), minibatch_size=4)
    split = make_trainer(case("default"), minibatch_size=4, microbatch_size=microbatch_size)
    for step in case("default")["steps"]:
        ours, theirs = replay_step(split, step), replay_step(whole, step)
        ours["memory/peak_bytes"] = theirs["memory/peak_bytes"]
        assert ours == golden(theirs)


def test_accumulation_over_minibatches_holds_on_every_batch() -> None:
    """Two minibatches of one make one optimizer step, in the last batch as in the first."""
    accumulating = make_trainer(case("grad_accum"))
    counted = []
    stepper = accumulating.optimiser.stepper
    original = type(stepper).step

    class Counting:
        def backward(self, loss: torch.Tensor) -> None:
            stepper.backward(loss)

        def step(self) -> float:
            counted.append(1)
            return original(stepper)

        def discard(self) -> None:
            stepper.discard()

    object.__setattr__(accumulating.optimiser, "stepper", Counting())
    for step in case("grad_accum")["steps"]:
        replay_step(accumulating, step)
    assert len(counted) == 2 * 2 * 2  # steps * epochs * optimizer steps per epoch
