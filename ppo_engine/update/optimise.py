"""The PPO update: epochs of minibatches over one rollout batch. Legend: B sequences, T response tokens.

Losses are sums over microbatches divided by the minibatch's token count, so no number depends on how a minibatch is
split or padded. Statistics are masked means per minibatch; the caller averages them over all minibatches, as TRL does.
Sequences without a token to train on are left out: they cost nothing and change no number.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from ppo_engine.batch import Advantages, RolloutBatch
from ppo_engine.errors import NonFinite
from ppo_engine.maths.logprobs import Distribution, Head
from ppo_engine.maths.masked import keep, masked_sum
from ppo_engine.ranks import ALONE, Ranks
from ppo_engine.update.minibatch import Microbatch, Minibatch
from ppo_engine.update.objective import PolicyForward, Terms, UpdateRules, critic_terms, ppo_terms

KL_STOP_FACTOR = 1.5
"""Epochs stop when the epoch's mean policykl exceeds this times target_kl (TRL, stable-baselines3)."""


_BAD_LOSSES = "bad losses"


class Stepper(Protocol):
    """What happens to gradients: clip, check, step the optimizer."""

    def backward(self, loss: Tensor) -> None: ...

    def step(self) -> float:
        """Clip, step, clear; returns the gradient norm before clipping."""
        ...

    def discard(self) -> None:
        """Clear the gradients and leave the weights alone."""
        ...


class TextLoss(Protocol):
    """The language-model loss on ordinary text that each optimizer step adds: `ptx.TextObjective`."""

    @property
    def coef(self) -> float:
        """Weight of the loss."""
        ...

    def accumulate(self, backward: Callable[[Tensor], None]) -> float:
        """Add the gradients of coef * loss on the next batch of texts; returns the loss, nats per token."""
        ...


@dataclass(slots=True)
class UpdateRecord:
    """What the updates of one step were like."""

    updates: list[dict[str, float]] = field(default_factory=list)
    ratios: list[Tensor] = field(default_factory=list)
    """Of the trained tokens of each update; none during the critic's warm-up."""
    grad_norms: list[float] = field(default_factory=list)
    skipped: int = 0
    epochs_run: int = 0

    def means(self) -> dict[str, float]:
        """Plain mean of every statistic over the updates that have it; one that is not finite anywhere is left out."""
        found: defaultdict[str, list[float]] = defaultdict(list)
        for update in self.updates:
            for key, value in update.items():
                found[key].append(value)
        means = {key: sum(values) / len(values) for key, values in found.items()}
        return {key: mean for key, mean in means.items() if math.isfinite(mean)}


@dataclass(frozen=True, slots=True)
class Optimiser:
    """Runs the PPO epochs over a rollout batch."""

    policy: PolicyForward
    stepper: Stepper
    rules: UpdateRules
    distribution: Distribution
    texts: TextLoss | None = None
    ref_head: Head | None = None
    """The reference's, for the full KL in the loss."""
    ranks: Ranks = ALONE
    """Each does its share of a minibatch's rows; the stepper adds up their gradients."""

    def run(
        self,
        batch: RolloutBatch,
        targets: Advantages,
        permutations: Callable[[int], Sequence[int]],
        *,
        kl_coef: float,
        critic_only: bool = False,
    ) -> UpdateRecord:
        """Update the policy on one rollout batch.

        Args:
            permutations: batch size -> order of the sequences, called once per epoch.
            kl_coef: coefficient of the KL term, where that is in the loss.
            critic_only: leave the policy and its optimizer state untouched, and train the critic.

        Raises:
            NonFinite: a loss or gradient is not finite; the weights are as after the last good optimizer step.
        """
        record = UpdateRecord()
        trained = batch.mask.any(dim=1)

        def terms(part: Microbatch) -> Terms:
            if critic_only:
                return critic_terms(self.policy, part, self.distribution, self.rules)
            return ppo_terms(self.policy, part, self.distribution, self.rules, kl_coef, self.ref_head)

        for _ in range(self.rules.ppo_epochs):
            first = len(record.updates)
            order = torch.as_tensor(permutations(len(batch.scores)), device=batch.scores.device)
            for group in self._groups(order, trained):
                minibatches = [Minibatch(batch, targets, rows) for rows in group]
                self._optimizer_step(minibatches, terms, record, texts=None if critic_only else self.texts)
            record.epochs_run += 1
            if self._too_far(record.updates[first:]):
                break
        return record

    def _groups(self, order: Tensor, trained: Tensor) -> Iterator[list[Tensor]]:
        """Rows of minibatches, grouped by optimizer step. Sizes need not divide the batch.

        Rows without a trained token are taken out of their minibatch, and a minibatch of nothing else out of its group.
        """
        minibatches = order.split(self.rules.minibatch_size)
        for start in range(0, len(minibatches), self.rules.gradient_accumulation_steps):
            group = minibatches[start : start + self.rules.gradient_accumulation_steps]
            kept = [rows for rows in (rows[trained[rows]] for rows in group) if len(rows)]
            if kept:
                yield kept

    def _too_far(self, epoch: list[dict[str, float]]) -> bool:
        """Whether the epoch moved the policy further than `target_kl` allows."""
        moves = [update["ppo/policy/policykl"] for update in epoch if "ppo/policy/policykl" in update]
        limit = self.rules.target_kl
        return limit is not None and bool(moves) and sum(moves) / len(moves) > KL_STOP_FACTOR * limit

    def _optimizer_step(
        self,
        minibatches: list[Minibatch],
        terms: Callable[[Microbatch], Terms],
        record: UpdateRecord,
        *,
        texts: TextLoss | None,
    ) -> None:
        """Accumulate the minibatches' gradients and step, unless one of them trips the ratio guard."""
        try:
            updates = [self._accumulate(minibatch, terms, record, 1 / len(minibatches)) for minibatch in minibatches]
            ratios = [update.pop("ratio", 1.0) for update in updates]
            if max(ratios) > self.rules.ratio_threshold:
                self.stepper.discard()
                record.skipped += len(minibatches)
            else:
                if texts is not None:
                    _note_text_loss(updates, texts.coef, texts.accumulate(self.stepper.backward))
                record.grad_norms.append(self.stepper.step())
        except NonFinite:
            self.stepper.discard()
            raise
        record.updates += updates

    def _accumulate(
        self, minibatch: Minibatch, terms: Callable[[Microbatch], Terms], record: UpdateRecord, weight: float
    ) -> dict[str, float]:
        """Forward and backward over one minibatch; returns its statistics."""
        tokens, mask = minibatch.tokens, minibatch.mask
        sums: defaultdict[str, float] = defaultdict(float)
        ratios = torch.zeros(mask.shape, device=mask.device)
        own = self.ranks.split(torch.arange(len(mask), device=mask.device))
        for places, part in minibatch.split(own, self.rules.microbatch_size):
            found = terms(part)
            loss = masked_sum(found.loss, part.mask) / tokens
            if not bool(torch.isfinite(loss)):
                sums[_BAD_LOSSES] += 1  # all ranks must hear of it: raised below
                break
            self.stepper.backward(loss * weight)
            measured = found.measured
            if found.ratio is not None:
                measured = measured | {"ratio": found.ratio}
                ratios[places, : found.ratio.shape[1]] = found.ratio.detach().float()
            for key, total in _token_sums(measured, part.mask).items():
                sums[key] += total
        totals, count = self.ranks.total(sums), float(tokens)
        if _BAD_LOSSES in totals:
            raise NonFinite("the PPO loss is not finite")
        if "ratio" in totals:
            record.ratios.append(self.ranks.sum(ratios)[mask])
        return {key: total / count for key, total in totals.items()} | minibatch.fixed_statistics()


def _note_text_loss(updates: list[dict[str, float]], coef: float, loss: float) -> None:
    """Put the text loss of an optimizer step into the statistics of all its minibatches."""
    for update in updates:
        update["ppo/loss/ptx"] = loss
        update["ppo/loss/total"] += coef * loss


@torch.no_grad()
def _token_sums(measured: Mapping[str, Tensor], mask: Tensor) -> dict[str, float]:
    """Sums over the kept tokens, in float64 and with one transfer from the device."""
    sums = torch.stack([keep(term.double(), mask).sum() for term in measured.values()]).tolist()
    return dict(zip(measured, sums, strict=True))
