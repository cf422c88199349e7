"""From what a step did to the numbers it reports; `ppo_engine.stats` has the meanings. B sequences, T tokens."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter

import torch
from torch import Tensor

from ppo_engine.batch import Advantages, RolloutBatch
from ppo_engine.maths.advantages import explained_variance
from ppo_engine.maths.masked import masked_mean, masked_sum
from ppo_engine.rewards import Scores
from ppo_engine.stats import REWARDS
from ppo_engine.update.optimise import UpdateRecord


@dataclass(slots=True)
class Stopwatch:
    """Seconds per phase of one step, under the keys `time/ppo/*`."""

    seconds: dict[str, float] = field(default_factory=dict)
    _start: float = field(default_factory=perf_counter)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a block."""
        start = perf_counter()
        yield
        self.seconds[f"time/ppo/{name}"] = perf_counter() - start

    def total(self) -> float:
        """Seconds since the step began."""
        return perf_counter() - self._start


def spread(prefix: str, mean: str, std: str, values: Sequence[float]) -> dict[str, float]:
    """Mean, and the unbiased deviation where there are two values or more."""
    tensor = torch.tensor(values, dtype=torch.float64)
    found = {f"{prefix}{mean}": float(tensor.mean())}
    if len(values) > 1:
        found[f"{prefix}{std}"] = float(tensor.std())
    return found


def reward_scalars(scores: Scores) -> dict[str, float]:
    """Raw rewards of the responses that were not dropped; every component over the responses it could score."""
    scored = {name: [x for x in values if x is not None] for name, values in scores.components.items()}
    components = {REWARDS.key(name): sum(values) / len(values) for name, values in scored.items() if values}
    errors = {"env/reward_errors": scores.error_fraction}
    return spread("env/", "reward_mean", "reward_std", scores.kept) | errors | components


def length_scalars(batch: RolloutBatch) -> dict[str, float]:
    """Lengths of prompts and responses, tokens; end-of-text counts."""
    prompts, responses = lengths(batch)
    return spread("tokens/", "queries_len_mean", "queries_len_std", prompts) | spread(
        "tokens/", "responses_len_mean", "responses_len_std", responses
    )


def lengths(batch: RolloutBatch) -> tuple[list[float], list[float]]:
    """Tokens of each prompt and each response."""
    prompts = batch.sequences.prompt_mask.sum(dim=1).tolist()
    responses = batch.sequences.response_present.sum(dim=1).tolist()
    return [float(n) for n in prompts], [float(n) for n in responses]


def objective_scalars(batch: RolloutBatch, kl_coef: float, *, kl_in_reward: bool = True) -> dict[str, float]:
    """KL, entropy and scores at the rollout, before any update, over the responses that are trained on.

    With the KL in the loss no reward carries any, and `ppo/mean_non_score_reward` is 0; `objective/rlhf_reward` is what
    is being maximised either way.
    """
    mask, kl, scores = batch.mask, trained_sums(batch.kl, batch.mask), batch.scores[batch.mask.any(dim=1)]
    penalty = kl_coef if kl_in_reward else 0.0
    found = {
        "objective/kl_coef": kl_coef,
        "objective/entropy": float(-trained_sums(batch.old_logprobs, mask).mean()),
        "objective/perplexity": float((-masked_mean(batch.old_logprobs, mask)).exp()),
        "objective/rlhf_reward": float(scores.mean() - kl_coef * kl.mean()),
        "ppo/mean_non_score_reward": float(masked_mean(-penalty * batch.kl, mask)),
    }
    if batch.ref_logprobs is not None:
        found["objective/kl"] = float(kl.mean())
        found["objective/ref_perplexity"] = float((-masked_mean(batch.ref_logprobs, mask)).exp())
    return found | spread("ppo/", "mean_scores", "std_scores", scores.tolist())


def sequence_sums(x: Tensor, mask: Tensor) -> Tensor:
    """Sum over the kept tokens of each row: [B, T] -> [B]."""
    return torch.where(mask, x, torch.zeros_like(x)).sum(dim=1)


def trained_sums(x: Tensor, mask: Tensor) -> Tensor:
    """The same without the rows that have no kept token: [B, T] -> [responses trained on]."""
    return sequence_sums(x, mask)[mask.any(dim=1)]


def update_scalars(record: UpdateRecord, batch: RolloutBatch, targets: Advantages) -> dict[str, float]:
    """Means over the updates, and what is made of them."""
    found = record.means()
    returns_var = found.get("ppo/returns/var", 0.0)
    if returns_var > 0.0:
        found["ppo/val/var_explained"] = 1.0 - found["ppo/val/error"] / returns_var
    explained = explained_variance(batch.old_values, targets.returns, batch.mask)
    if explained is not None:
        found["ppo/val/explained_variance"] = explained
    if "ppo/loss/ptx" in found:
        found["objective/ptx_perplexity"] = perplexity(found["ppo/loss/ptx"])
    if record.grad_norms:
        found["ppo/grad_norm"] = sum(record.grad_norms) / len(record.grad_norms)
    found["ppo/skipped_updates"] = float(record.skipped)
    found["ppo/epochs_run"] = float(record.epochs_run)
    if record.ratios:
        found["ppo/policy/ratio_max"] = max(float(ratios.max()) for ratios in record.ratios)
    return found


def perplexity(loss: float) -> float:
    """exp of nats per token; the largest float where that would overflow."""
    return math.exp(min(loss, math.log(sys.float_info.max)))


def sampling_scalars(finished: Sequence[bool], sampler_logprobs: Tensor, batch: RolloutBatch) -> dict[str, float]:
    """How the responses ended, and how far sampler and scorer disagree."""
    ended = sum(finished) / len(finished)
    difference = masked_sum((sampler_logprobs - batch.old_logprobs).abs(), batch.mask) / batch.mask.sum()
    return {
        "tokens/eos_fraction": ended,
        "tokens/truncated_fraction": 1.0 - ended,
        "sampling/logprob_mismatch": float(difference),
    }


def histograms(
    batch: RolloutBatch, targets: Advantages, record: UpdateRecord, raw: Sequence[float]
) -> dict[str, list[float]]:
    """Distributions over real response tokens, sequences or prompts."""
    mask = batch.mask
    prompts, responses = lengths(batch)
    found = {
        "env/reward_dist": list(raw),
        "objective/logprobs": batch.old_logprobs[mask].tolist(),
        "ppo/policy/advantages": targets.advantages[mask].tolist(),
        "tokens/queries_dist": prompts,
        "tokens/responses_dist": responses,
        "tokens/responses_len_dist": responses,
    }
    if record.ratios:
        found["ppo/policy/ratio"] = torch.cat(record.ratios).tolist()
    if batch.ref_logprobs is not None:
        found["objective/kl_dist"] = trained_sums(batch.kl, mask).tolist()
        found["objective/ref_logprobs"] = batch.ref_logprobs[mask].tolist()
    return found
