"""From what a step did to the numbers it reports; `ppo_engine.stats` has the meanings. B sequences, T tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter

import torch
from torch import Tensor

from ppo_engine.batch import Advantages, RolloutBatch
from ppo_engine.masked import masked_mean, masked_sum, masked_var
from ppo_engine.optimise import UpdateRecord
from ppo_engine.rewards import Scores
from ppo_engine.stats import REWARDS


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


def objective_scalars(batch: RolloutBatch, kl_coef: float) -> dict[str, float]:
    """KL, entropy and scores at the rollout, before any update."""
    mask, kl = batch.mask, sequence_sums(batch.kl, batch.mask)
    found = {
        "objective/kl_coef": kl_coef,
        "objective/entropy": float(-sequence_sums(batch.old_logprobs, mask).mean()),
        "objective/perplexity": float((-masked_mean(batch.old_logprobs, mask)).exp()),
        "objective/rlhf_reward": float(batch.scores.mean() - kl_coef * kl.mean()),
        "ppo/mean_non_score_reward": float(masked_mean(-kl_coef * batch.kl, mask)),
    }
    if batch.ref_logprobs is not None:
        found["objective/kl"] = float(kl.mean())
        found["objective/ref_perplexity"] = float((-masked_mean(batch.ref_logprobs, mask)).exp())
    return found | spread("ppo/", "mean_scores", "std_scores", batch.scores.tolist())


def sequence_sums(x: Tensor, mask: Tensor) -> Tensor:
    """Sum over the kept tokens of each row: [B, T] -> [B]."""
    return torch.where(mask, x, torch.zeros_like(x)).sum(dim=1)


def update_scalars(record: UpdateRecord, batch: RolloutBatch, targets: Advantages) -> dict[str, float]:
    """Means over the updates, and what is made of them."""
    found = record.means()
    returns_var = found.get("ppo/returns/var", 0.0)
    if returns_var > 0.0:
        found["ppo/val/var_explained"] = 1.0 - found["ppo/val/error"] / returns_var
    variance = masked_var(targets.returns, batch.mask)
    if bool(variance > 0):
        residual = masked_var(targets.returns - batch.old_values, batch.mask)
        found["ppo/val/explained_variance"] = float(1.0 - residual / variance)
    if record.grad_norms:
        found["ppo/grad_norm"] = sum(record.grad_norms) / len(record.grad_norms)
    found["ppo/skipped_updates"] = float(record.skipped)
    found["ppo/epochs_run"] = float(record.epochs_run)
    found["ppo/policy/ratio_max"] = max(float(ratios.max()) for ratios in record.ratios)
    return found


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
        "ppo/policy/ratio": torch.cat(record.ratios).tolist(),
        "ppo/policy/advantages": targets.advantages[mask].tolist(),
        "tokens/queries_dist": prompts,
        "tokens/responses_dist": responses,
        "tokens/responses_len_dist": responses,
    }
    if batch.ref_logprobs is not None:
        found["objective/kl_dist"] = sequence_sums(batch.kl, mask).tolist()
        found["objective/ref_logprobs"] = batch.ref_logprobs[mask].tolist()
    return found
