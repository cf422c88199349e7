"""The PPO objective on one microbatch: a loss per token and what is measured of it. b sequences, t response tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from ppo_engine.batch import Sequences
from ppo_engine.config import KLPenalty, KLPlacement, TrainConfig
from ppo_engine.maths.kl import per_token_kl
from ppo_engine.maths.logprobs import Distribution, Head
from ppo_engine.maths.losses import ValueLoss, policy_loss, value_loss
from ppo_engine.models.policy import OtherDistribution, TokenOutputs
from ppo_engine.update.minibatch import Microbatch


class PolicyForward(Protocol):
    """What `models.policy.Policy` does."""

    def __call__(
        self,
        sequences: Sequences,
        distribution: Distribution,
        *,
        entropy_grad: bool = False,
        value_only: bool = False,
        against: OtherDistribution | None = None,
    ) -> TokenOutputs: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRules:
    """The numbers of an update; `config.PPOConfig` documents them."""

    ppo_epochs: int
    minibatch_size: int
    microbatch_size: int
    gradient_accumulation_steps: int
    clip_range: float
    clip_range_high: float | None
    dual_clip: float | None
    value_clip_range: float | None
    huber_delta: float | None
    vf_coef: float
    entropy_coef: float
    kl_in_loss: KLPenalty | None
    """The penalty in the loss; None where it is in the rewards."""
    ratio_threshold: float
    target_kl: float | None


def update_rules(config: TrainConfig) -> UpdateRules:
    """The part of the spec that the optimiser reads."""
    ppo = config.ppo
    return UpdateRules(
        ppo_epochs=ppo.ppo_epochs,
        minibatch_size=config.minibatch_size,
        microbatch_size=config.microbatch_size,
        gradient_accumulation_steps=ppo.gradient_accumulation_steps,
        clip_range=ppo.clip_range,
        clip_range_high=ppo.clip_range_high,
        dual_clip=ppo.dual_clip,
        value_clip_range=ppo.value_clip_range,
        huber_delta=ppo.huber_delta,
        vf_coef=ppo.vf_coef,
        entropy_coef=ppo.entropy_coef,
        kl_in_loss=config.kl.penalty if config.kl.placement is KLPlacement.LOSS else None,
        ratio_threshold=ppo.ratio_threshold,
        target_kl=ppo.target_kl,
    )


class Terms(NamedTuple):
    """All [b, t]: what is averaged and minimised, what is reported of it by key, and the ratio if there is one."""

    loss: Tensor
    measured: dict[str, Tensor]
    ratio: Tensor | None


def ppo_terms(
    policy: PolicyForward,
    part: Microbatch,
    distribution: Distribution,
    rules: UpdateRules,
    kl_coef: float,
    ref_head: Head | None = None,
) -> Terms:
    """policy + vf_coef * value - entropy_coef * entropy, + kl_coef * KL from the reference where the loss has it."""
    against = None
    if rules.kl_in_loss is KLPenalty.FULL and part.ref_hidden is not None and ref_head is not None:
        against = OtherDistribution(part.ref_hidden, ref_head)
    outputs = policy(part.sequences, distribution, entropy_grad=rules.entropy_coef > 0, against=against)
    gain = policy_loss(
        outputs.logprobs,
        part.old_logprobs,
        part.advantages,
        clip_range=rules.clip_range,
        clip_range_high=rules.clip_range_high,
        dual_clip=rules.dual_clip,
    )
    value = _value_loss(outputs.values, part, rules)
    loss = gain.loss + rules.vf_coef * value.loss - rules.entropy_coef * outputs.entropy
    change = outputs.logprobs - part.old_logprobs
    measured = {
        "ppo/loss/policy": gain.loss,
        "ppo/loss/entropy": -rules.entropy_coef * outputs.entropy,
        "ppo/policy/entropy": outputs.entropy,
        "ppo/policy/approxkl": 0.5 * change.square(),
        "ppo/policy/policykl": -change,
        "ppo/policy/clipfrac": gain.clipped,
        **_measured(outputs.values, value),
    }
    if rules.kl_in_loss is not None and part.ref_logprobs is not None:
        kl = per_token_kl(outputs.logprobs, part.ref_logprobs, rules.kl_in_loss) if outputs.kl is None else outputs.kl
        term = kl_coef * kl
        measured["ppo/loss/kl"] = term
        loss = loss + term
    return Terms(loss, measured | {"ppo/loss/total": loss}, gain.ratio)


def critic_terms(policy: PolicyForward, part: Microbatch, distribution: Distribution, rules: UpdateRules) -> Terms:
    """vf_coef * value, with gradients for the critic alone: its warm-up, in which the policy stands still."""
    values = policy(part.sequences, distribution, value_only=True).values
    value = _value_loss(values, part, rules)
    loss = rules.vf_coef * value.loss
    return Terms(loss, _measured(values, value) | {"ppo/loss/total": loss}, None)


def _value_loss(values: Tensor, part: Microbatch, rules: UpdateRules) -> ValueLoss:
    return value_loss(
        values, part.old_values, part.returns, clip_range=rules.value_clip_range, huber_delta=rules.huber_delta
    )


def _measured(values: Tensor, value: ValueLoss) -> dict[str, Tensor]:
    return {
        "ppo/loss/value": value.loss,
        "ppo/val/vpred": values,
        "ppo/val/error": value.error,
        "ppo/val/clipfrac": value.clipped,
    }
