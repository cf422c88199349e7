"""From scores per response to rewards per token. Shapes: B sequences, T response tokens; mask True = real token."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ppo_engine.config import ScoreScaling
from ppo_engine.maths.masked import keep


@dataclass(slots=True)
class RunningMoments:
    """Mean and variance of all scores seen so far.

    Source: Chan, Golub and LeVeque 1979, parallel update; TRL 0.11.4 `RunningMoments` starts from mean 0, variance 1
    and count 1e-24.
    """

    mean: float = 0.0
    var: float = 1.0
    count: float = 1e-24

    @property
    def std(self) -> float:
        """Unbiased standard deviation; with one score or none, 1."""
        return math.sqrt(self.var * self.count / (self.count - 1.0)) if self.count > 1.0 else 1.0

    def update(self, scores: Tensor) -> None:
        """Merge the scores [B] of one step; none leave everything as it is."""
        values = scores.double()
        count = values.numel()
        if count == 0:
            return
        mean = float(values.mean())
        delta, total = mean - self.mean, self.count + count
        squares = self.var * self.count + float((values - mean).square().sum())
        self.var = (squares + delta**2 * self.count * count / total) / total
        self.mean += delta * count / total
        self.count = total


def process_scores(scores: Tensor, moments: RunningMoments, scaling: ScoreScaling, clip: float | None) -> Tensor:
    """Scale by the running moments (which this updates first, as TRL does), then clip: [B] -> [B].

    `scores` are those of the responses that are trained on: another one must not enter the moments.
    """
    if scaling is not ScoreScaling.NONE:
        moments.update(scores)
        mean = moments.mean if scaling is ScoreScaling.NORMALISE else 0.0
        scores = (scores - mean) / (moments.std + torch.finfo(scores.dtype).eps)
    return scores if clip is None else scores.clamp(-clip, clip)


def overlong_penalty(lengths: Tensor, *, max_tokens: int, buffer_tokens: int, largest: float) -> Tensor:
    """What a long response costs, in score: [B] tokens -> [B], from 0 to `largest`.

    Nothing up to max_tokens - buffer_tokens, then growing linearly to `largest` at max_tokens.

    Source: Yu et al. 2025, arXiv:2503.14476 (DAPO), eq. 13.
    """
    excess = lengths - (max_tokens - buffer_tokens)
    return largest * (excess / buffer_tokens).clamp(0.0, 1.0)


def per_token_rewards(
    scores: Tensor, kl: Tensor, mask: Tensor, kl_coef: float, token_rewards: Tensor | None = None
) -> Tensor:
    """-kl_coef * kl on every real token, plus the score on the last one: [B], [B, T] -> [B, T].

    Args:
        scores: [B]; that of a response without a real token is nobody's.
        token_rewards: [B, T], dense rewards, added to the real tokens as they are: the scaling, clipping and penalties
            that made `scores` do not touch them.

    Source: Ziegler et al. 2019, arXiv:1909.08593, eq. 2; TRL 0.11.4 `compute_rewards`.
    """
    rewards = keep(-kl_coef * kl, mask)
    if token_rewards is not None:
        rewards = rewards + keep(token_rewards, mask)
    positions = torch.arange(mask.shape[1], device=mask.device)
    last = torch.where(mask, positions, -1).argmax(dim=1)
    rows = torch.arange(len(scores), device=mask.device)
    rewards[rows, last] += keep(scores, mask.any(dim=1))
    return rewards
