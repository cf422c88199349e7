"""PPO on a real language model raises a real reward, without running away from the reference."""

from __future__ import annotations

from pathlib import Path
from statistics import mean

import pytest

from ppo_engine import runtime
from ppo_engine.build import build_trainer
from ppo_engine.config import TrainConfig

MODELS = Path(__file__).parents[3] / "examples" / "models"
PROMPTS = [
    "The movie was",
    "My dinner at",
    "The concert was",
    "She was",
    "It is a truth",
    "Mr. Darcy",
    "The weather this morning",
    "He looked at her and",
]
SPEC = {
    "model": {"policy": {"path": "austen-2m"}},
    "prompts": {"inline": PROMPTS},
    "rewards": [{"name": "mood", "rule": {"name": "sentiment"}}],
    "generation": {"max_new_tokens": 12},
    # lambda 1: while the critic still says 0, a smaller one credits the end token most, and responses only get shorter.
    "ppo": {"steps": 25, "batch_size": 64, "minibatch_size": 32, "ppo_epochs": 2, "gae_lambda": 1.0},
    "kl": {"init_kl_coef": 0.05, "fixed": {}},
    "optimizer": {"learning_rate": 1e-3, "max_grad_norm": 1.0},
    "resources": {"device": "cpu", "precision": "fp32", "threads": 1},
}
"""Six seeds gained 0.37 to 0.52 from the first five steps to the last five (mean 0.45, deviation 0.06), and ended at a
KL of 7.8 to 11.4 nats per sequence; the bounds below are more than three deviations away."""


@pytest.mark.slow
def test_ppo_makes_the_austen_model_more_positive() -> None:
    config = TrainConfig.model_validate(SPEC)
    accelerator = runtime.start(config.resources)
    trainer, _ = build_trainer(config, accelerator, roots=[MODELS], on_phase=lambda phase: None)
    steps = [step.stats.scalars for step in trainer.steps()]
    rewards = [scalars["env/reward_mean"] for scalars in steps]
    assert len(rewards) == 25
    assert abs(mean(rewards[:5]) - 0.13) < 0.1
    assert mean(rewards[-5:]) - mean(rewards[:5]) > 0.25
    assert steps[0]["objective/kl"] == pytest.approx(0.0, abs=1e-4)
    assert 1.0 < mean(scalars["objective/kl"] for scalars in steps[-5:]) < 20.0
    assert 0.05 < steps[0]["tokens/eos_fraction"] < 0.6
