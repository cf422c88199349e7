"""Evaluation: fixed prompts, answered with fixed seeds, so that only the policy changes from one to the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from ppo_engine.batch import Sequences
from ppo_engine.config import EvaluationConfig, GenerationConfig
from ppo_engine.data.prompts import Prompt
from ppo_engine.events import Sample
from ppo_engine.experience.evaluate import Evaluation
from ppo_engine.experience.rollout import Responder, Rollout
from ppo_engine.experience.samples import samples_of
from ppo_engine.maths.logprobs import Distribution
from ppo_engine.rewards import Scorer
from ppo_engine.stats import EVAL_REWARDS
from ppo_engine.summary import Stopwatch, sequence_sums, spread

Measure = Callable[[Sequences, Distribution], Evaluation]
"""Log-probabilities, values and KL (k1) of sequences under the policy that is evaluated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluator:
    """Answers the evaluation set; draws nothing from the training's random states."""

    prompts: Sequence[Prompt]
    fingerprint: str
    """Digest of the set."""
    config: EvaluationConfig
    training: GenerationConfig
    batch_size: int
    """Prompts answered at once."""
    samples: int
    """Answers kept, those of the first prompts."""

    def run(self, responder: Responder, scorer: Scorer, measure: Measure) -> tuple[dict[str, float], list[Sample]]:
        """Statistics under the keys `eval/*`, and samples.

        Raises:
            RewardFailed: the responses could not be scored.
        """
        generator = torch.Generator(responder.generator.device).manual_seed(self.config.seed)
        temperature = self.config.temperature
        generation = self.training.model_copy(
            update={"max_new_tokens": self.config.max_new_tokens or self.training.max_new_tokens}
        )
        distribution = replace(responder.distribution, temperature=temperature or self.training.temperature)
        answering = replace(
            responder, config=generation, distribution=distribution, generator=generator, greedy=temperature == 0.0
        )
        parts = []
        for start in range(0, len(self.prompts), self.batch_size):
            rollout = answering.collect(self.prompts[start : start + self.batch_size], scorer, Stopwatch())
            parts.append(_Part.of(rollout, measure(rollout.sequences, distribution)))
        kept = [sample for part in parts for sample in samples_of(part.rollout, part.kl, self.samples, evaluation=True)]
        return _scalars(parts), kept[: self.samples]


@dataclass(frozen=True, slots=True)
class _Part:
    """One batch of answers: what is kept of it, per response."""

    rollout: Rollout
    kl: list[float] | None
    entropy: list[float]
    tokens: list[int]

    @classmethod
    def of(cls, rollout: Rollout, found: Evaluation) -> _Part:
        mask = rollout.sequences.response_mask
        kl = None if found.ref_logprobs is None else sequence_sums(found.kl, mask).tolist()
        entropy = (-sequence_sums(found.logprobs, mask)).tolist()
        return cls(rollout, kl, entropy, [exchange.response_tokens for exchange in rollout.exchanges])


def _scalars(parts: Sequence[_Part]) -> dict[str, float]:
    scores = [score for part in parts for score in part.rollout.scores.kept]
    found = spread("eval/", "reward_mean", "reward_std", scores)
    for name in parts[0].rollout.scores.components:
        values = [v for part in parts for v in part.rollout.scores.components[name] if v is not None]
        if values:
            found[EVAL_REWARDS.key(name)] = _mean(values)
    kl = [value for part in parts for value in part.kl or []]
    if kl:
        found["eval/kl"] = _mean(kl)
    found["eval/entropy"] = _mean([value for part in parts for value in part.entropy])
    found["eval/responses_len_mean"] = _mean([float(n) for part in parts for n in part.tokens])
    found["eval/eos_fraction"] = _mean([float(ended) for part in parts for ended in part.rollout.finished])
    return found


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
