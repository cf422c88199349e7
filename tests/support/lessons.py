"""Small whole trainings on the example model: what a spec teaches it in a few steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from accelerate.state import AcceleratorState
from torch.nn.functional import cross_entropy

from ppo_engine import runtime
from ppo_engine.build import build_trainer
from ppo_engine.config import TrainConfig, expand_preset
from ppo_engine.trainer import Trainer
from tests.support.source_tree import ROOT

MODELS = ROOT / "examples" / "models"
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
TASK: dict[str, Any] = {
    "model": {"policy": {"path": "austen-2m"}},
    "prompts": {"inline": PROMPTS},
    "rewards": [{"name": "comma", "rule": {"name": "regex", "params": {"pattern": ","}}}],
    "generation": {"max_new_tokens": 6},
    "ppo": {"steps": 6, "batch_size": 24, "minibatch_size": 8},
    "optimizer": {"learning_rate": 2e-3},
    "resources": {"device": "cpu", "precision": "fp32", "threads": 1},
}
"""A comma within six tokens: about one response in six has one, so a few steps show whether anything is learned."""
PLAIN: dict[str, Any] = {
    "ppo": {"ppo_epochs": 1, "gae_lambda": 1.0},
    "kl": {"init_kl_coef": 0.05, "fixed": {}},
    "optimizer": {"max_grad_norm": 1.0},
}
"""What a preset would choose itself. Lambda 1: while the critic still says 0, a smaller one credits the last token."""


def merged(below: Any, above: Any) -> Any:
    """Two documents, the second over the first; objects are merged key by key."""
    if not (isinstance(below, Mapping) and isinstance(above, Mapping)):
        return above
    return {**below, **{key: merged(below.get(key), value) for key, value in above.items()}}


@dataclass(frozen=True)
class Lesson:
    """A training that has ended."""

    trainer: Trainer
    steps: list[Mapping[str, float]]
    """The scalars of each step."""

    def series(self, key: str) -> list[float]:
        """One scalar over the steps that have it."""
        return [scalars[key] for scalars in self.steps if key in scalars]

    def end(self, key: str) -> float:
        """Mean of a scalar over the last three steps."""
        return mean(self.series(key)[-3:])

    def gain(self, key: str = "env/reward_mean") -> float:
        """Mean of a scalar over the last three steps minus that over the first two."""
        return self.end(key) - mean(self.series(key)[:2])


def teach(spec: Mapping[str, Any], *, seed: int = 0, roots: Sequence[Path] = ()) -> Lesson:
    """Train to the end under a whole spec."""
    config = TrainConfig.model_validate(expand_preset({**spec, "seed": seed}))
    AcceleratorState._reset_state(reset_partial_state=True)  # its precision is that of the process
    accelerator = runtime.start(config.resources)
    trainer, _ = build_trainer(config, accelerator, roots=[MODELS, *roots], on_phase=lambda phase: None)
    return Lesson(trainer, [step.stats.scalars for step in trainer.steps()])


@torch.no_grad()
def perplexity(lesson: Lesson, texts: Sequence[str]) -> float:
    """exp of the mean -log-probability of the texts' tokens but the first, by the policy as a plain causal model."""
    model, tokenizer = lesson.trainer.models.policy.language.model, lesson.trainer.models.tokenizer
    losses: list[torch.Tensor] = []
    for text in texts:
        ids = torch.tensor(tokenizer(text)["input_ids"])
        losses.append(cross_entropy(model(input_ids=ids[None]).logits[0, :-1].float(), ids[1:], reduction="none"))
    return math.exp(float(torch.cat(losses).mean()))
