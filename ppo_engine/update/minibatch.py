"""Rows of a rollout batch that share one loss, and their split into microbatches. B sequences, T response tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from ppo_engine.batch import Advantages, RolloutBatch, Sequences
from ppo_engine.maths.masked import masked_mean, masked_var


@dataclass(frozen=True, slots=True)
class Microbatch:
    """Rows of a batch, without columns that are padding in all of them. Tensors are [b, t]."""

    sequences: Sequences
    old_logprobs: Tensor
    ref_logprobs: Tensor | None
    ref_hidden: Tensor | None
    """[b, t, H]"""
    old_values: Tensor
    advantages: Tensor
    returns: Tensor

    @property
    def mask(self) -> Tensor:
        """[b, t] bool: the tokens trained on."""
        return self.sequences.response_mask


@dataclass(frozen=True, slots=True)
class Minibatch:
    """Rows of a batch that share one loss, each with a token to train on."""

    batch: RolloutBatch
    targets: Advantages
    rows: Tensor

    @property
    def mask(self) -> Tensor:
        """[b, T] bool: the tokens trained on."""
        return self.batch.mask[self.rows]

    @property
    def tokens(self) -> Tensor:
        """The denominator of all its means."""
        return self.mask.sum()

    def split(self, places: Tensor, size: int) -> Iterator[tuple[Tensor, Microbatch]]:
        """Microbatches of `size` of its rows, those at `places`; each with its own places."""
        for part in places.split(size) if len(places) else ():
            rows = self.rows[part]
            sequences, ref = self.batch.sequences.rows(rows), self.batch.ref_logprobs
            ref_hidden = self.batch.ref_hidden
            width = sequences.response_mask.shape[1]
            yield (
                part,
                Microbatch(
                    sequences,
                    self.batch.old_logprobs[rows, :width],
                    None if ref is None else ref[rows, :width],
                    None if ref_hidden is None else ref_hidden[rows, :width],
                    self.batch.old_values[rows, :width],
                    self.targets.advantages[rows, :width],
                    self.targets.returns[rows, :width],
                ),
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
