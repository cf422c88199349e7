"""Generalised advantage estimation. Shapes: B sequences, T steps; mask True = a real step. Knows nothing of text."""

from __future__ import annotations

import torch
from torch import Tensor

from ppo_engine.masked import keep


def gae(rewards: Tensor, values: Tensor, mask: Tensor, *, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Advantages and returns of each real step; 0 elsewhere.

    Args:
        rewards: [B, T].
        values: [B, T], V of the state in which the step is taken. V past the last real step is 0.
        mask: [B, T] bool. Dropped steps inside a sequence are skipped: the accumulators are carried across them, so
            they cost no discount.
        gamma: discount per real step.
        lam: GAE lambda.

    Returns:
        advantages [B, T] and returns = advantages + values [B, T].

    Source: Schulman et al. 2015, arXiv:1506.02438, eq. 16.
    """
    advantages = torch.zeros_like(rewards)
    running = torch.zeros_like(rewards[:, 0])
    next_value = torch.zeros_like(running)
    for t in reversed(range(rewards.shape[1])):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        real = mask[:, t]
        running = torch.where(real, delta + gamma * lam * running, running)
        next_value = torch.where(real, values[:, t], next_value)
        advantages[:, t] = running
    advantages = keep(advantages, mask)
    return advantages, keep(advantages + values, mask)
