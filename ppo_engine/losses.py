"""The PPO losses, per token. Shapes [B, T] throughout; the caller averages over kept tokens. Knows nothing of text."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped here: e^20 is far past any clip or threshold, and finite in every dtype."""


class PolicyLoss(NamedTuple):
    """Per token: the loss, the ratio new/old, and whether the clipped term was the larger."""

    loss: Tensor
    ratio: Tensor
    clipped: Tensor


class ValueLoss(NamedTuple):
    """Per token: half the larger squared error, the plain squared error, and whether the clipped one was larger."""

    loss: Tensor
    error: Tensor
    clipped: Tensor


def policy_loss(new_logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, *, clip_range: float) -> PolicyLoss:
    """max(-A r, -A clip(r, 1 - eps, 1 + eps)) with r = exp(new - old).

    On the first pass over fresh data r is exactly 1.

    Source: Schulman et al. 2017, arXiv:1707.06347, eq. 7.
    """
    ratio = (new_logprobs - old_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1.0 - clip_range, 1.0 + clip_range)
    return PolicyLoss(torch.maximum(plain, clipped), ratio.detach(), clipped.detach() > plain.detach())


def value_loss(new_values: Tensor, old_values: Tensor, returns: Tensor, *, clip_range: float) -> ValueLoss:
    """0.5 * max((v - R)^2, (clip(v, V - eps, V + eps) - R)^2); eps in value units.

    Source: OpenAI baselines ppo2; TRL 0.11.4 `PPOTrainer.loss`.
    """
    clipped_values = torch.clamp(new_values, old_values - clip_range, old_values + clip_range)
    error, clipped_error = (new_values - returns).square(), (clipped_values - returns).square()
    larger = torch.maximum(error, clipped_error)
    return ValueLoss(0.5 * larger, error.detach(), clipped_error.detach() > error.detach())
