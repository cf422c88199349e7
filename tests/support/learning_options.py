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
    """Of the gain, over seeds 0 to 3, or 0 to 4."""
    deviation: float
    """The same; four seeds tell little of it, so `least` keeps its distance from deviations below 0.05 too."""
    least: float
    """The bound of the test: 3.2 deviations below the mean. A policy that stands still gains 0.0, deviation 0.07."""

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
    "plain": Option(mean=0.486, deviation=0.056, least=0.3),
    "lora": Option(
        changes={"model": {"lora": {"rank": 8}}, "optimizer": {"learning_rate": 7e-3}},
        mean=0.477,
        deviation=0.066,
        least=0.26,
    ),
    "top layers": Option(
        changes={"model": {"trainable_layers": 2}, "optimizer": {"learning_rate": 4e-3}},
        mean=0.484,
        deviation=0.053,
        least=0.31,
    ),
    "separate critic": Option(changes={"model": {"value": {"separate": {}}}}, mean=0.498, deviation=0.027, least=0.33),
    "k3 in the loss": Option(
        changes={"ppo": {"steps": 8}, "kl": {"penalty": "k3", "placement": "loss", "init_kl_coef": 1.0}},
        mean=0.384,
        deviation=0.064,
        least=0.17,
    ),
    "full in the reward": Option(
        changes={"kl": {"penalty": "full", "init_kl_coef": 0.1}}, mean=0.531, deviation=0.036, least=0.37
    ),
    "full in the loss": Option(
        changes={"kl": {"penalty": "full", "placement": "loss", "init_kl_coef": 0.5}},
        mean=0.399,
        deviation=0.032,
        least=0.23,
    ),
    "strong kl": Option(
        changes={"ppo": {"steps": 8}, "kl": {"init_kl_coef": 0.3}}, mean=0.389, deviation=0.038, least=0.22
    ),
    "adaptive": Option(
        changes={"kl": {"adaptive": {"target": 2.0, "horizon": 24.0}}}, mean=0.528, deviation=0.041, least=0.36
    ),
    "bf16": Option(changes={"resources": {"precision": "bf16"}}, mean=0.542, deviation=0.047, least=0.38),
    "ptx": Option(
        changes={"ptx": {"texts": TEXTS, "coef": 0.1, "batch_size": 1}}, mean=0.483, deviation=0.026, least=0.32
    ),
    "normalise": Option(
        changes={"rewards": _weighted(100.0), "ppo": {"score_scaling": "normalise", "score_clip": 3.0}},
        mean=53.3,
        deviation=5.7,
        least=34.0,
    ),
    "scale": Option(
        changes={"rewards": _weighted(100.0), "ppo": {"score_scaling": "scale"}}, mean=53.6, deviation=4.3, least=37.0
    ),
    "several samples": Option(changes={"ppo": {"samples_per_prompt": 4}}, mean=0.503, deviation=0.06, least=0.31),
    "clip higher": Option(
        changes={"ppo": {"clip_range_high": 1.0, "dual_clip": 2.0}}, mean=0.517, deviation=0.063, least=0.31
    ),
    "entropy bonus": Option(changes={"ppo": {"entropy_coef": 0.1}}, mean=0.405, deviation=0.069, least=0.18),
    "target_kl": Option(changes={"ppo": {"ppo_epochs": 4, "target_kl": 0.05}}, mean=0.545, deviation=0.014, least=0.38),
    "trl-classic": Option(
        preset="trl-classic",
        changes={"ppo": {"batch_size": 48, "minibatch_size": 48}},
        mean=0.368,
        deviation=0.05,
        least=0.2,
    ),
    "ppo-max": Option(
        preset="ppo-max",
        changes={"ppo": {"critic_warmup_steps": 1}, "optimizer": {"value_learning_rate": 5e-3}},
        mean=0.578,
        deviation=0.1,
        least=0.25,
    ),
    "instructgpt": Option(
        preset="instructgpt",
        changes={"ptx": {"texts": TEXTS, "coef": 0.2, "batch_size": 1}, "optimizer": {"warmup_steps": 2}},
        mean=0.566,
        deviation=0.035,
        least=0.4,
    ),
    "n-details": Option(
        preset="n-details",
        changes={"ppo": {"minibatch_size": 12}, "optimizer": {"learning_rate": 2e-3}},
        earned="ppo/mean_scores",
        mean=0.339,
        deviation=0.052,
        least=0.17,
    ),
}


@cache
def lesson(option: str, seed: int = 0) -> Lesson:
    """The option's training, once a process: several tests look at it."""
    return teach(OPTIONS[option].spec(), seed=seed)
