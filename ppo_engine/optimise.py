"""The PPO update: epochs of minibatches over one rollout batch. Legend: B sequences, T response tokens.

Losses are sums over microbatches divided by the minibatch's token count, so no number depends on how a minibatch is
split or padded. Statistics are masked means per minibatch; the caller averages them over all minibatches, as TRL does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from ppo_engine.batch import Advantages, RolloutBatch, Sequences
from ppo_engine.errors import NonFinite
from ppo_engine.logprobs import Distribution
from ppo_engine.losses import PolicyLoss, ValueLoss, policy_loss, value_loss
from ppo_engine.masked import keep, masked_mean, masked_sum, masked_var
from ppo_engine.models import TokenOutputs

KL_STOP_FACTOR = 1.5
"""Epochs stop when the epoch's mean policykl exceeds this times target_kl (TRL, stable-baselines3)."""


class PolicyForward(Protocol):
    """`models.Policy`, possibly wrapped by accelerate."""

    def __call__(
        self, sequences: Sequences, distribution: Distribution, *, entropy_grad: bool = False
    ) -> TokenOutputs: ...


class Stepper(Protocol):
    """What happens to gradients: clip, check, step the optimizer."""

    def backward(self, loss: Tensor) -> None: ...

    def step(self) -> float:
        """Clip, step, clear; returns the gradient norm before clipping."""
        ...

    def discard(self) -> None:
        """Clear the gradients and leave the weights alone."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRules:
    """The numbers of an update; `config.PPOConfig` documents them."""

    ppo_epochs: int
    minibatch_size: int
    microbatch_size: int
    gradient_accumulation_steps: int
    clip_range: float
    value_clip_range: float
    vf_coef: float
    entropy_coef: float
    ratio_threshold: float
    target_kl: float | None


@dataclass(slots=True)
class UpdateRecord:
    """What the updates of one step were like."""

    updates: list[dict[str, float]] = field(default_factory=list)
    ratios: list[Tensor] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)
    skipped: int = 0
    epochs_run: int = 0

    def means(self) -> dict[str, float]:
        """Plain mean of every statistic over all updates; one that is not finite anywhere is left out."""
        keys = self.updates[0].keys()
        means = {key: sum(update[key] for update in self.updates) / len(self.updates) for key in keys}
        return {key: value for key, value in means.items() if value == value}  # noqa: PLR0124 - NaN: undefined


@dataclass(frozen=True, slots=True)
class Optimiser:
    """Runs the PPO epochs over a rollout batch."""

    policy: PolicyForward
    stepper: Stepper
    rules: UpdateRules
    distribution: Distribution

    def run(
        self, batch: RolloutBatch, targets: Advantages, permutations: Callable[[int], Sequence[int]]
    ) -> UpdateRecord:
        """Update the policy on one rollout batch.

        Args:
            permutations: batch size -> order of the sequences, called once per epoch.

        Raises:
            NonFinite: a loss or gradient is not finite; the weights are as after the last good optimizer step.
        """
        record = UpdateRecord()
        for _ in range(self.rules.ppo_epochs):
            first = len(record.updates)
            order = torch.as_tensor(permutations(len(batch.scores)), device=batch.scores.device)
            for minibatches in self._groups(order):
                self._optimizer_step([_Minibatch(batch, targets, rows) for rows in minibatches], record)
            record.epochs_run += 1
            epoch = [update["ppo/policy/policykl"] for update in record.updates[first:]]
            limit = self.rules.target_kl
            if limit is not None and sum(epoch) / len(epoch) > KL_STOP_FACTOR * limit:
                break
        return record

    def _groups(self, order: Tensor) -> Iterator[list[Tensor]]:
        """Minibatches, grouped by optimizer step. Sizes need not divide the batch."""
        minibatches = list(order.split(self.rules.minibatch_size))
        for start in range(0, len(minibatches), self.rules.gradient_accumulation_steps):
            yield minibatches[start : start + self.rules.gradient_accumulation_steps]

    def _optimizer_step(self, minibatches: list[_Minibatch], record: UpdateRecord) -> None:
        """Accumulate the minibatches' gradients and step, unless one of them trips the ratio guard."""
        tripped = False
        for minibatch in minibatches:
            update, ratios = self._accumulate(minibatch, weight=1 / len(minibatches))
            tripped |= update.pop("ratio") > self.rules.ratio_threshold
            record.updates.append(update)
            record.ratios.append(ratios)
        if tripped:
            self.stepper.discard()
            record.skipped += len(minibatches)
        else:
            record.grad_norms.append(self.stepper.step())

    def _accumulate(self, minibatch: _Minibatch, *, weight: float) -> tuple[dict[str, float], Tensor]:
        """Forward and backward over one minibatch; returns its statistics and the ratios of its tokens."""
        rules, tokens = self.rules, minibatch.tokens
        sums, ratios = torch.zeros(len(_SUMS), dtype=torch.float64), []
        for part in minibatch.split(rules.microbatch_size):
            outputs = self.policy(part.sequences, self.distribution, entropy_grad=rules.entropy_coef > 0)
            policy_terms = policy_loss(
                outputs.logprobs, part.old_logprobs, part.advantages, clip_range=rules.clip_range
            )
            value_terms = value_loss(outputs.values, part.old_values, part.returns, clip_range=rules.value_clip_range)
            per_token = policy_terms.loss + rules.vf_coef * value_terms.loss - rules.entropy_coef * outputs.entropy
            loss = masked_sum(per_token, part.mask) / tokens
            if not bool(torch.isfinite(loss)):
                raise NonFinite("the PPO loss is not finite")
            self.stepper.backward(loss * weight)
            sums += _token_sums(outputs, part.old_logprobs, policy_terms, value_terms, part.mask)
            ratios.append(policy_terms.ratio[part.mask])
        update = dict(zip(_SUMS, (sums / float(tokens)).tolist(), strict=True))
        update["ppo/loss/entropy"] = -rules.entropy_coef * update["ppo/policy/entropy"]
        update["ppo/loss/total"] = (
            update["ppo/loss/policy"] + rules.vf_coef * update["ppo/loss/value"] + update["ppo/loss/entropy"]
        )
        return update | minibatch.fixed_statistics(), torch.cat(ratios)


@dataclass(frozen=True, slots=True)
class _Microbatch:
    """Rows of a batch, without columns that are padding in all of them. All tensors [b, t]."""

    sequences: Sequences
    old_logprobs: Tensor
    old_values: Tensor
    advantages: Tensor
    returns: Tensor

    @property
    def mask(self) -> Tensor:
        return self.sequences.response_mask


@dataclass(frozen=True, slots=True)
class _Minibatch:
    """Rows of a batch that share one loss; `tokens` is the denominator of all its means."""

    batch: RolloutBatch
    targets: Advantages
    rows: Tensor

    @property
    def tokens(self) -> Tensor:
        return self.batch.mask[self.rows].sum()

    def split(self, size: int) -> Iterator[_Microbatch]:
        """Microbatches of `size` rows."""
        for rows in self.rows.split(size):
            sequences = self.batch.sequences.rows(rows)
            width = sequences.response_mask.shape[1]
            yield _Microbatch(
                sequences,
                self.batch.old_logprobs[rows, :width],
                self.batch.old_values[rows, :width],
                self.targets.advantages[rows, :width],
                self.targets.returns[rows, :width],
            )

    def fixed_statistics(self) -> dict[str, float]:
        """Statistics that no forward pass is needed for."""
        mask = self.batch.mask[self.rows]
        returns, values = self.targets.returns[self.rows], self.batch.old_values[self.rows]
        return {
            "ppo/policy/advantages_mean": float(masked_mean(self.targets.advantages[self.rows], mask)),
            "ppo/returns/mean": float(masked_mean(returns, mask)),
            "ppo/returns/var": float(masked_var(returns, mask)),
            "ppo/val/mean": float(masked_mean(values, mask)),
            "ppo/val/var": float(masked_var(values, mask)),
        }


_SUMS = (
    "ppo/loss/policy",
    "ppo/loss/value",
    "ppo/policy/entropy",
    "ppo/policy/approxkl",
    "ppo/policy/policykl",
    "ppo/policy/clipfrac",
    "ppo/val/vpred",
    "ppo/val/error",
    "ppo/val/clipfrac",
    "ratio",
)


@torch.no_grad()
def _token_sums(
    outputs: TokenOutputs, old_logprobs: Tensor, policy_terms: PolicyLoss, value_terms: ValueLoss, mask: Tensor
) -> Tensor:
    """Sums over the kept tokens, in the order of _SUMS: float64, on the CPU."""
    change = outputs.logprobs - old_logprobs
    terms = (
        policy_terms.loss,
        value_terms.loss,
        outputs.entropy,
        0.5 * change.square(),
        -change,
        policy_terms.clipped.float(),
        outputs.values,
        value_terms.error,
        value_terms.clipped.float(),
        policy_terms.ratio,
    )
    return torch.stack([keep(term, mask).double().sum() for term in terms]).cpu()
