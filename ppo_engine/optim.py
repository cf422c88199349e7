"""The optimizer, its learning rate, and the one place where gradients become weights."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from ppo_engine.config import OptimizerConfig, Schedule
from ppo_engine.errors import NonFinite


def make_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """AdamW over the trainable parameters; the fused kernel where torch has one for the device."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.AdamW(
        parameters,
        lr=config.learning_rate,
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
        fused=True,
    )


def learning_rate(config: OptimizerConfig, step: int, steps_total: int) -> float:
    """Rate of a 0-based step: linear warm-up to the peak, then the schedule down to 0 after the last step."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    progress = (step - config.warmup_steps) / max(1, steps_total - config.warmup_steps)
    match config.schedule:
        case Schedule.CONSTANT:
            factor = 1.0
        case Schedule.LINEAR:
            factor = 1.0 - progress
        case Schedule.COSINE:
            factor = 0.5 * (1.0 + math.cos(math.pi * progress))
    return config.learning_rate * factor


@dataclass(frozen=True, slots=True)
class GuardedStepper:
    """Clips on every optimizer step, and refuses gradients that are not finite before they reach a weight."""

    accelerator: Accelerator
    policy: nn.Module
    optimizer: torch.optim.Optimizer
    max_grad_norm: float | None

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of one part of a minibatch."""
        self.accelerator.backward(loss)

    def step(self) -> float:
        """Clip, step, clear; returns the gradient norm before clipping.

        Raises:
            NonFinite: the norm is not finite.
        """
        limit = math.inf if self.max_grad_norm is None else self.max_grad_norm
        norm = float(self.accelerator.clip_grad_norm_(self.policy.parameters(), limit))
        if not math.isfinite(norm):
            self.discard()
            raise NonFinite("a gradient is not finite")
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def discard(self) -> None:
        """Clear the gradients and leave weights and moments alone."""
        self.optimizer.zero_grad(set_to_none=True)
