"""The optimizer, its learning rate, and the one place where gradients become weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from ppo_engine.config import OptimizerConfig, Schedule
from ppo_engine.errors import NonFinite
from ppo_engine.models.compute import ComputeWeights
from ppo_engine.ranks import ALONE, Ranks

_NORM_VALUES = 2**20
"""Values whose squares are summed at once: what is in bf16 becomes fp32 in near memory."""
_NORM_EPS = 1e-6
"""As in `torch.nn.utils.clip_grad_norm_`."""


def make_optimizer(
    policy: Iterable[nn.Parameter], critic: Iterable[nn.Parameter], config: OptimizerConfig
) -> torch.optim.Optimizer:
    """AdamW with two groups, the policy's trainable parameters and the critic's; `set_rates` sets their rates."""
    groups = [{"params": [p for p in parameters if p.requires_grad]} for parameters in (policy, critic)]
    return torch.optim.AdamW(
        groups,
        lr=config.learning_rate,
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
        fused=True,
    )


def schedule_factor(config: OptimizerConfig, step: int, steps_total: int) -> float:
    """Share of the peak rate in a 0-based step: linear warm-up to 1, then the schedule, to 0 after the last step."""
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    progress = (step - config.warmup_steps) / max(1, steps_total - config.warmup_steps)
    match config.schedule:
        case Schedule.CONSTANT:
            return 1.0
        case Schedule.LINEAR:
            return 1.0 - progress
        case Schedule.COSINE:
            return 0.5 * (1.0 + math.cos(math.pi * progress))


class Rates(NamedTuple):
    """Learning rates of a step, in the order of the optimizer's groups."""

    policy: float
    critic: float


def learning_rates(config: OptimizerConfig, step: int, steps_total: int, factor: float = 1.0) -> Rates:
    """Policy and critic under the same schedule and factor, each with its own peak."""
    critic = config.learning_rate if config.value_learning_rate is None else config.value_learning_rate
    share = factor * schedule_factor(config, step, steps_total)
    return Rates(config.learning_rate * share, critic * share)


def set_rates(optimizer: torch.optim.Optimizer, rates: Rates) -> None:
    """Give both groups of `make_optimizer` their rates."""
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate


@dataclass(frozen=True, slots=True)
class GuardedStepper:
    """Clips on every optimizer step, and refuses gradients that are not finite before they reach a weight."""

    accelerator: Accelerator
    optimizer: torch.optim.Optimizer
    weights: ComputeWeights
    max_grad_norm: float | None
    ranks: Ranks = ALONE

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of one part of a minibatch."""
        self.accelerator.backward(loss)

    def step(self) -> float:
        """Clip, step, clear; returns the gradient norm before clipping.

        Raises:
            NonFinite: the norm is not finite.
        """
        trained = [p for group in self.optimizer.param_groups for p in group["params"]]
        if self.ranks.count > 1:
            self.weights.settle(trained)
            self.ranks.add_gradients(trained)
        norm = _norm([g for p in trained if (g := self.weights.gradient(p)) is not None])
        if not math.isfinite(norm):
            self.discard()
            raise NonFinite("a gradient is not finite")
        settled = [p for p in trained if p.grad is not None]
        for bucket in chain([settled], self.weights.buckets()):  # lazily: buckets share their memory
            self._step(bucket, norm)
        return norm

    @torch.no_grad()
    def _step(self, parameters: list[nn.Parameter], norm: float) -> None:
        """Step some parameters, while no other has a gradient where the optimizer looks for it."""
        gradients = [p.grad for p in parameters if p.grad is not None]
        if not gradients:
            return
        if self.max_grad_norm is not None and (factor := self.max_grad_norm / (norm + _NORM_EPS)) < 1.0:
            torch._foreach_mul_(gradients, factor)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.weights.refresh(parameters)

    def discard(self) -> None:
        """Clear the gradients and leave weights and moments alone."""
        self.optimizer.zero_grad(set_to_none=True)
        self.weights.forget()


def _norm(gradients: Sequence[Tensor]) -> float:
    """Over all of them together, in fp32; 0 of none."""
    parts = [part for gradient in gradients for part in gradient.flatten().split(_NORM_VALUES)]
    norms = [torch.linalg.vector_norm(part, dtype=torch.float32) for part in parts]
    return float(torch.linalg.vector_norm(torch.stack(norms))) if norms else 0.0
