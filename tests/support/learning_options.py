"""One small training per option of the spec, with what it gained when it was measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tests.support.lessons import PLAIN, TASK, Lesson, merged, teach

SENTENCES = [
    "The family of Dashwood had long been settled in Sussex.",
    "Mr. Bennet was among the earliest of those who waited on Mr. Bingley.",
    "No one who had ever seen Catherine Morland in her infancy would have supposed her born to be an heroine.",
    "It was for the sake of what had been, rather than what was.",
]
"""First lines of three novels and one more, by Jane Austen; the model was trained on them, among 3 million others."""
TEXTS = {"inline": SENTENCES, "max_tokens": 24}


@dataclass(frozen=True, kw_only=True)
class Option:
    """What is changed in the plain task, and the gain to expect."""

    changes: dict[str, Any] = field(default_factory=dict)
    preset: str | None = None
    earned: str = "env/reward_mean"
    """What rises: with a penalty on the score, that is the score and not the reward alone."""
    mean: float
    """Of the gain, over eight seeds that the tests do not use."""
    deviation: float
    """The same; eight seeds tell little of it, so `least` keeps its distance from deviations below 0.06 too."""
    least: float
    """The bound of the test: 3.3 deviations below the mean. A policy that stands still gains 0.0, deviation 0.07."""
    seeds: tuple[int, ...] = (0,)
    """Whose mean must be above `least`: more than one where the gains are spread widely."""

    def spec(self) -> dict[str, Any]:
        """The whole spec; a preset stands in place of the plain settings."""
        base = PLAIN if self.preset is None else {"ppo": {"preset": self.preset}}
        spec: dict[str, Any] = merged(merged(TASK, base), self.changes)
        if "adaptive" in spec.get("kl", {}):
            del spec["kl"]["fixed"]
        return spec


def _weighted(weight: float) -> list[dict[str, Any]]:
    return [{**TASK["rewards"][0], "weight": weight}]


OPTIONS: dict[str, Option] = {
    "plain": Option(mean=0.534, deviation=0.072, least=0.3),
    "lora": Option(
        changes={"model": {"lora": {"rank": 8}}, "optimizer": {"learning_rate": 7e-3}},
        mean=0.514,
        deviation=0.059,
        least=0.32,
    ),
    "top layers": Option(
        changes={"model": {"trainable_layers": 2}, "optimizer": {"learning_rate": 4e-3}},
        mean=0.464,
        deviation=0.079,
        least=0.2,
    ),
    "separate critic": Option(changes={"model": {"value": {"separate": {}}}}, mean=0.548, deviation=0.049, least=0.35),
    "k3 in the loss": Option(
        changes={"ppo": {"steps": 8}, "kl": {"penalty": "k3", "placement": "loss", "init_kl_coef": 0.4}},
        mean=0.43,
        deviation=0.129,
        least=0.18,
        seeds=(0, 1, 2),
    ),
    "full in the reward": Option(
        changes={"kl": {"penalty": "full", "init_kl_coef": 0.1}}, mean=0.553, deviation=0.063, least=0.35
    ),
    "full in the loss": Option(
        changes={"kl": {"penalty": "full", "placement": "loss", "init_kl_coef": 0.5}},
        mean=0.391,
        deviation=0.048,
        least=0.19,
    ),
    "strong kl": Option(
        changes={"ppo": {"steps": 8}, "kl": {"init_kl_coef": 0.3}},
        mean=0.445,
        deviation=0.109,
        least=0.24,
        seeds=(0, 1, 2),
    ),
    "adaptive": Option(
        changes={"kl": {"adaptive": {"target": 2.0, "horizon": 24.0}}}, mean=0.525, deviation=0.063, least=0.32
    ),
    "bf16": Option(changes={"resources": {"precision": "bf16"}}, mean=0.577, deviation=0.042, least=0.38),
    "ptx": Option(
        changes={"ptx": {"texts": TEXTS, "coef": 0.1, "batch_size": 1}}, mean=0.505, deviation=0.061, least=0.3
    ),
    "normalise": Option(
        changes={"rewards": _weighted(100.0), "ppo": {"score_scaling": "normalise", "score_clip": 3.0}},
        mean=55.035,
        deviation=8.624,
        least=27.0,
    ),
    "scale": Option(
        changes={"rewards": _weighted(100.0), "ppo": {"score_scaling": "scale"}},
        mean=57.205,
        deviation=6.065,
        least=37.0,
    ),
    "several samples": Option(changes={"ppo": {"samples_per_prompt": 4}}, mean=0.501, deviation=0.064, least=0.29),
    "clip higher": Option(
        changes={"ppo": {"clip_range_high": 1.0, "dual_clip": 2.0}}, mean=0.559, deviation=0.056, least=0.36
    ),
    "entropy bonus": Option(changes={"ppo": {"entropy_coef": 0.1}}, mean=0.47, deviation=0.095, least=0.16),
    "target_kl": Option(changes={"ppo": {"ppo_epochs": 4, "target_kl": 0.05}}, mean=0.561, deviation=0.068, least=0.34),
    "trl-classic": Option(
        preset="trl-classic",
        changes={"ppo": {"batch_size": 48, "minibatch_size": 48}},
        mean=0.326,
        deviation=0.093,
        least=0.15,
        seeds=(0, 1, 2),
    ),
    "ppo-max": Option(
        preset="ppo-max",
        changes={"ppo": {"critic_warmup_steps": 1}, "optimizer": {"value_learning_rate": 5e-3}},
        mean=0.523,
        deviation=0.072,
        least=0.29,
    ),
    "instructgpt": Option(
        preset="instructgpt",
        changes={"ptx": {"texts": TEXTS, "coef": 0.2, "batch_size": 1}, "optimizer": {"warmup_steps": 2}},
        mean=0.503,
        deviation=0.067,
        least=0.28,
    ),
    "n-details": Option(
        preset="n-details",
        changes={"ppo": {"minibatch_size": 12}, "optimizer": {"learning_rate": 2e-3}},
        earned="ppo/mean_scores",
        mean=0.406,
        deviation=0.14,
        least=0.14,
        seeds=(0, 1, 2),
    ),
}


@cache
def lesson(option: str, seed: int = 0) -> Lesson:
    """The option's training, once a process: several tests look at it."""
    return teach(OPTIONS[option].spec(), seed=seed)
