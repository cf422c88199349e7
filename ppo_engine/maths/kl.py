"""KL from the reference per token, and the controllers of its coefficient.

Shapes: B sequences, T response tokens. Log-probabilities are natural, KL is in nats.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ppo_engine.config import AdaptiveKL, FixedKL, KLPenalty
from ppo_engine.maths.losses import MAX_LOG_RATIO


def per_token_kl(logprobs: Tensor, ref_logprobs: Tensor, penalty: KLPenalty) -> Tensor:
    """Estimate KL(policy || reference) of each taken token from its two logprobs, [B, T] -> [B, T].

    With d = logprob - ref_logprob: `kl` d, `abs` |d|, `mse` d^2 / 2, `k3` exp(-d) + d - 1 (never negative, and as `kl`
    right on average). It carries the gradient of `logprobs`; in `k3`, d stops at -20, before exp(-d) overflows.
    `full` needs both distributions and is computed where the logits are (`ppo_engine.maths.logprobs.full_kl`).

    Source: TRL 0.11.4 `PPOTrainer._kl_penalty`; k3: Schulman 2020, "Approximating KL divergence".
    """
    difference = logprobs - ref_logprobs
    match penalty:
        case KLPenalty.KL:
            return difference
        case KLPenalty.ABS:
            return difference.abs()
        case KLPenalty.MSE:
            return 0.5 * difference.square()
        case KLPenalty.K3:
            bounded = difference.clamp(min=-MAX_LOG_RATIO)
            return (-bounded).exp() + bounded - 1.0
        case KLPenalty.FULL:
            raise ValueError("the full penalty is not a function of the taken tokens' logprobs")


@dataclass(slots=True)
class FixedController:
    """A constant coefficient."""

    value: float

    def update(self, kl: float, sequences: int) -> None:
        """Keep the coefficient."""


@dataclass(slots=True)
class AdaptiveController:
    """Moves the coefficient so that KL approaches a target.

    Source: Ziegler et al. 2019, arXiv:1909.08593, section 2.2; TRL 0.11.4 `AdaptiveKLController`.
    """

    value: float
    target: float
    horizon: float

    def update(self, kl: float, sequences: int) -> None:
        """Adapt to the measured KL (nats per sequence) of a step of that many sequences."""
        error = min(max(kl / self.target - 1.0, -0.2), 0.2)
        self.value *= 1.0 + error * sequences / self.horizon


def controller(coefficient: float, config: AdaptiveKL | FixedKL) -> AdaptiveController | FixedController:
    """Make the configured controller, starting at `coefficient`."""
    if isinstance(config, FixedKL):
        return FixedController(coefficient)
    return AdaptiveController(coefficient, config.target, config.horizon)
