"""The hyperparameters of the algorithm: sampling, the PPO update, the KL penalty, the optimizer.

Defaults are those of TRL 0.11.4's classic trainer where it has one. Units are in the descriptions.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from ppo_engine.config.base import Config


class ScoreScaling(StrEnum):
    """Running scaling of the summed scores before clipping (TRL `use_score_scaling`, `use_score_norm`)."""

    NONE = "none"
    SCALE = "scale"
    """Divide by the running standard deviation."""
    NORMALISE = "normalise"
    """Subtract the running mean and divide by the running standard deviation."""


StopString = Annotated[str, StringConstraints(min_length=1, max_length=100)]


class GenerationConfig(Config):
    """How responses are sampled. What is sampled is also what is scored: temperature enters both."""

    max_new_tokens: int = Field(32, ge=1, le=131_072, description="Longest response, tokens.")
    min_new_tokens: int = Field(1, ge=1, le=131_072, description="Shortest response, tokens: no end-of-text before it.")
    stop: list[StopString] = Field(
        default_factory=list, max_length=16, description="A response also ends with one of these texts; scored without."
    )
    temperature: float = Field(1.0, gt=0.0, le=100.0, description="Divides the logits when sampling and when scoring.")
    top_k: int = Field(
        0, ge=0, description="Only 0 (off) is possible: cutting the distribution makes KL and ratio wrong."
    )
    top_p: float = Field(1.0, gt=0.0, le=1.0, description="Only 1 (off) is possible, for the same reason.")


class Preset(StrEnum):
    """Published recipes; `ppo_engine.config.presets` has their values and sources."""

    TRL_CLASSIC = "trl-classic"
    PPO_MAX = "ppo-max"
    INSTRUCTGPT = "instructgpt"
    N_DETAILS = "n-details"


class PPOConfig(Config):
    """The PPO update (Schulman et al. 2017, arXiv:1707.06347; Ziegler et al. 2019, arXiv:1909.08593)."""

    preset: Preset | None = Field(
        None, description="A published recipe: its values take the place of the defaults, and yours of its values."
    )
    steps: int = Field(ge=1, le=10_000_000, description="Collect-and-optimise cycles.")
    batch_size: int = Field(128, ge=1, le=1_000_000, description="Responses collected per step, sequences.")
    samples_per_prompt: int = Field(
        1, ge=1, le=100_000, description="Responses to each prompt drawn; batch_size counts responses."
    )
    minibatch_size: int | None = Field(
        None, ge=1, le=1_000_000, description="Sequences per loss (TRL `mini_batch_size`). Default: batch_size."
    )
    microbatch_size: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="Sequences per forward pass: saves memory and changes no number. Default: minibatch_size.",
    )
    gradient_accumulation_steps: int = Field(
        1, ge=1, le=1_000_000, description="Minibatches per optimizer step, each with the same weight (as in TRL)."
    )
    ppo_epochs: int = Field(4, ge=1, le=1000, description="Passes over one batch.")
    gamma: float = Field(1.0, ge=0.0, le=1.0, description="Discount per token.")
    gae_lambda: float = Field(0.95, ge=0.0, le=1.0, description="GAE lambda (TRL `lam`; arXiv:1506.02438).")
    value_gae_lambda: float | None = Field(
        None, ge=0.0, le=1.0, description="Lambda of the critic's returns (arXiv:2503.01491). Default: gae_lambda."
    )
    length_adaptive_lambda: float | None = Field(
        None,
        gt=0.0,
        le=10.0,
        description="Alpha of VAPO (arXiv:2504.05118, 0.05 there): the advantages' lambda is 1 - 1/(alpha * tokens of "
        "the response) instead of gae_lambda.",
    )
    clip_range: float = Field(0.2, gt=0.0, le=10.0, description="Policy ratio clip (TRL `cliprange`).")
    clip_range_high: float | None = Field(
        None, gt=0.0, le=10.0, description="Upper policy clip (clip-higher, arXiv:2503.14476). Default: clip_range."
    )
    dual_clip: float | None = Field(
        None, gt=1.0, le=1e3, description="Bound of the loss where the advantage is negative (arXiv:1912.09729)."
    )
    value_clip_range: float | None = Field(
        0.2, gt=0.0, le=1e6, description="Value clip around the old value, in value units (TRL `cliprange_value`)."
    )
    huber_delta: float | None = Field(
        None, gt=0.0, le=1e6, description="Value error from which the loss is linear. Default: squared everywhere."
    )
    vf_coef: float = Field(0.1, ge=0.0, le=1e3, description="Weight of the value loss.")
    entropy_coef: float = Field(0.0, ge=0.0, le=1e3, description="Weight of the entropy bonus.")
    whiten_advantages: bool = Field(True, description="Whiten advantages over the batch.")
    whiten_rewards: bool = Field(False, description="Whiten per-token rewards, keeping their mean.")
    score_scaling: ScoreScaling = Field(ScoreScaling.NONE, description="Running scaling of the scores.")
    score_clip: float | None = Field(None, gt=0.0, description="Clip scores to +-this after scaling.")
    missing_eos_penalty: float | None = Field(
        None,
        gt=0.0,
        le=1e6,
        description="Taken off the scaled and clipped score of a response that did not end by itself.",
    )
    overlong_buffer_tokens: int | None = Field(
        None,
        ge=1,
        le=131_072,
        description="Soft over-long penalty (arXiv:2503.14476, eq. 13): over the last so many tokens before "
        "max_new_tokens it grows from 0 to overlong_penalty.",
    )
    overlong_penalty: float = Field(1.0, gt=0.0, le=1e6, description="Largest over-long penalty, in score.")
    mask_truncated: bool = Field(False, description="Do not train on responses that did not end by themselves.")
    critic_warmup_steps: int = Field(
        0,
        ge=0,
        le=10_000_000,
        description="First steps, in which only the critic is trained: the policy, its optimizer state and the KL "
        "coefficient stand still, and what is measured of the policy's update is absent.",
    )
    critic_warmup_until: float | None = Field(
        None,
        lt=1.0,
        description="End the critic's warm-up early, at the first step whose ppo/val/explained_variance is above this.",
    )
    ratio_threshold: float = Field(
        10.0, gt=0.0, description="A minibatch whose mean ratio is above this is skipped, and counted."
    )
    target_kl: float | None = Field(
        None,
        gt=0.0,
        description="Stop further epochs when an epoch's mean policykl exceeds 1.5 times this, nats/token.",
    )


class AdaptiveKL(Config):
    """Ziegler et al. 2019, section 2.2: beta follows a KL target."""

    target: float = Field(6.0, gt=0.0, description="KL target, nats per sequence.")
    horizon: float = Field(10_000.0, gt=0.0, description="Samples over which beta adapts.")


class FixedKL(Config):
    """A constant beta."""


class KLPenalty(StrEnum):
    """The per-token penalty."""

    KL = "kl"
    ABS = "abs"
    MSE = "mse"
    FULL = "full"
    K3 = "k3"


class KLPlacement(StrEnum):
    """Where the penalty acts."""

    REWARD = "reward"
    """Every token's reward is lowered by beta times its KL."""
    LOSS = "loss"
    """Beta times the mean KL per token is added to the loss."""


class KLConfig(Config):
    """The penalty that keeps the policy near the reference."""

    penalty: KLPenalty = Field(
        KLPenalty.KL,
        description="d = lp-ref. kl: d; abs: |d|; mse: half of d squared; full: over the vocabulary (holds the policy "
        "back better in the loss: as a reward it is the same whichever token is drawn); k3: exp(-d)+d-1.",
    )
    placement: KLPlacement = Field(KLPlacement.REWARD, description="In the reward of every token, or in the loss.")
    init_kl_coef: float = Field(0.2, ge=0.0, le=1e3, description="Beta of the first step.")
    adaptive: AdaptiveKL | None = Field(None, description="Adapt beta to a target (the default controller).")
    fixed: FixedKL | None = Field(None, description="Keep beta constant.")

    @model_validator(mode="after")
    def _one_controller(self) -> Self:
        if self.adaptive is not None and self.fixed is not None:
            raise ValueError("give `adaptive` or `fixed`, not both")
        return self

    @property
    def controller(self) -> AdaptiveKL | FixedKL:
        """The chosen controller; adaptive with TRL's numbers unless one is given."""
        return self.fixed or self.adaptive or AdaptiveKL()


class Schedule(StrEnum):
    """Learning rate over the run."""

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


class OptimizerConfig(Config):
    """AdamW; with weight decay 0, Adam."""

    learning_rate: float = Field(1.41e-5, gt=0.0, le=10.0, description="Peak learning rate.")
    value_learning_rate: float | None = Field(
        None, gt=0.0, le=10.0, description="Peak learning rate of the critic. Default: learning_rate."
    )
    schedule: Schedule = Field(Schedule.CONSTANT, description="Decay after the warm-up, to 0 at the last step.")
    warmup_steps: int = Field(0, ge=0, description="Steps of linear warm-up.")
    betas: tuple[float, float] = Field((0.9, 0.999), description="Adam's moment decays.")
    eps: float = Field(1e-8, gt=0.0, description="Adam's epsilon.")
    weight_decay: float = Field(0.0, ge=0.0, le=10.0, description="Decoupled weight decay.")
    max_grad_norm: float | None = Field(None, gt=0.0, description="Clip the gradient norm before every optimizer step.")
