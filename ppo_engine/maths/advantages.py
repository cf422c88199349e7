"""Generalised advantage estimation. Shapes: B sequences, T steps; mask True = a real step. Knows nothing of text."""

from __future__ import annotations

import torch
from torch import Tensor

from ppo_engine.maths.masked import keep, masked_var


def gae(rewards: Tensor, values: Tensor, mask: Tensor, *, gamma: float, lam: float | Tensor) -> tuple[Tensor, Tensor]:
    """Advantages and returns of each real step; 0 elsewhere.

    Args:
        rewards: [B, T].
        values: [B, T], V of the state in which the step is taken. V past the last real step is 0.
        mask: [B, T] bool. Dropped steps inside a sequence are skipped: the accumulators are carried across them, so
            they cost no discount.
        gamma: discount per real step.
        lam: GAE lambda, one for all or one per sequence [B].

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


def length_adaptive_lambda(mask: Tensor, alpha: float) -> Tensor:
    """1 - 1 / (alpha l) of each sequence with l real steps, not below 0: [B, T] -> [B].

    A long sequence gets a lambda nearer to 1, so that a reward at its end still reaches its beginning: the weights of
    all its TD errors sum to alpha l.

    Source: Yue et al. 2025, arXiv:2504.05118 (VAPO), length-adaptive GAE.
    """
    steps = mask.sum(dim=1).clamp(min=1)
    return (1.0 - 1.0 / (alpha * steps)).clamp(0.0, 1.0)


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> float | None:
    """1 - Var(R - V) / Var(R) over the real steps; None where the returns do not vary."""
    variance = masked_var(returns, mask)
    if not bool(variance > 0):
        return None
    return float(1.0 - masked_var(returns - values, mask) / variance)
