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
    """Per token: the loss, the plain squared error, and whether the clipped error was larger than the plain one."""

    loss: Tensor
    error: Tensor
    clipped: Tensor


def policy_loss(
    new_logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    *,
    clip_range: float,
    clip_range_high: float | None = None,
    dual_clip: float | None = None,
) -> PolicyLoss:
    """max(-A r, -A clip(r, 1 - eps, 1 + eps_high)) with r = exp(new - old).

    On the first pass over fresh data r is exactly 1.

    Args:
        clip_range: eps, how far below 1 the ratio may go before a token stops pulling.
        clip_range_high: eps_high; as `clip_range` unless given. A higher one lets rare tokens grow.
        dual_clip: c > 1 bounds the loss by -c A where A < 0, so that one bad token that became likely cannot decide the
            whole update. It leaves `clipped` alone, which says what `ppo/policy/clipfrac` has always said.

    Source: Schulman et al. 2017, arXiv:1707.06347, eq. 7; clip-higher: Yu et al. 2025, arXiv:2503.14476, section 3.1;
    dual clip: Ye et al. 2019, arXiv:1912.09729.
    """
    upper = clip_range if clip_range_high is None else clip_range_high
    ratio = (new_logprobs - old_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1.0 - clip_range, 1.0 + upper)
    loss = torch.maximum(plain, clipped)
    if dual_clip is not None:
        loss = torch.where(advantages < 0, torch.minimum(loss, -dual_clip * advantages), loss)
    return PolicyLoss(loss, ratio.detach(), clipped.detach() > plain.detach())


def value_loss(
    new_values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    *,
    clip_range: float | None,
    huber_delta: float | None = None,
) -> ValueLoss:
    """max(h(v - R), h(clip(v, V - eps, V + eps) - R)) with h(e) = 0.5 e^2.

    Args:
        clip_range: eps in value units; None leaves the second term out.
        huber_delta: from this error on h is linear: delta (|e| - delta / 2).

    Source: OpenAI baselines ppo2; TRL 0.11.4 `PPOTrainer.loss`; Huber 1964, "Robust estimation".
    """
    error = (new_values - returns).square()
    if clip_range is None:
        larger, clipped = error, torch.zeros_like(error, dtype=torch.bool)
    else:
        clipped_values = torch.clamp(new_values, old_values - clip_range, old_values + clip_range)
        clipped_error = (clipped_values - returns).square()
        larger, clipped = torch.maximum(error, clipped_error), clipped_error.detach() > error.detach()
    return ValueLoss(_huber(larger, huber_delta), error.detach(), clipped)


def _huber(squared: Tensor, delta: float | None) -> Tensor:
    """h of an error given as its square; h grows with it, so the larger square has the larger h."""
    if delta is None:
        return 0.5 * squared
    linear = squared > delta**2
    # The root only sees squares where h is linear: at 0 its gradient is infinite.
    magnitude = torch.where(linear, squared, torch.ones_like(squared)).sqrt()
    return torch.where(linear, delta * (magnitude - 0.5 * delta), 0.5 * squared)
