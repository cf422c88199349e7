"""Every hyperparameter of a run: name, default, bound and description, once.

Torch-free. Defaults are those of TRL 0.11.4's classic trainer where it has one. Alternatives are exactly-one-of fields
(`{"rule": {...}}` or `{"model": {...}}`), so JSON, proto and the database have the same shape. Rules that span several
fields are in `cross_checks`, outside the models, so that all of them can be reported together.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]


class Config(BaseModel):
    """A frozen value with no unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class OneOf(Config):
    """A union written as exactly one of its fields."""

    alternatives: ClassVar[tuple[str, ...]] = ()

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = [name for name in self.alternatives if getattr(self, name) is not None]
        if len(given) != 1:
            wanted = " or ".join(f"`{name}`" for name in self.alternatives)
            raise ValueError(f"give exactly one of {wanted}; {len(given)} given")
        return self


# --- models -------------------------------------------------------------------------------------------------------


class ModelSource(OneOf):
    """Where a model comes from."""

    alternatives = ("path", "hub")

    path: str | None = Field(
        None,
        min_length=1,
        max_length=4096,
        description="Folder with config.json, tokenizer and safetensors weights, under one of the model roots.",
    )
    hub: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?$",
        max_length=256,
        description="Hugging Face hub id, for example `HuggingFaceTB/SmolLM2-135M-Instruct`.",
    )
    revision: str | None = Field(None, max_length=256, description="Hub revision: branch, tag or commit.")


class ValueHeadInit(StrEnum):
    """How the value head starts."""

    ZERO = "zero"
    """Weights and bias 0: the first values are 0, not noise."""
    NORMAL = "normal"
    """Weights N(0, 0.2), bias 0 (TRL's `v_head_init_strategy="normal"`)."""


class SharedValue(Config):
    """A linear head, in fp32, on the policy's last hidden state."""

    init: ValueHeadInit = Field(ValueHeadInit.ZERO, description="Initialisation of the head.")


class ValueConfig(OneOf):
    """The critic."""

    alternatives = ("shared",)

    shared: SharedValue | None = Field(None, description="A head on the policy's own trunk.")


class NoReference(Config):
    """Train without a reference model; only possible without a KL penalty."""


class ReferenceConfig(OneOf):
    """The frozen model that KL is measured against."""

    alternatives = ("source", "none")

    source: ModelSource | None = Field(None, description="Another model with the policy's vocabulary.")
    none: NoReference | None = Field(None, description="No reference: needs `kl.init_kl_coef` 0.")


class ModelConfig(Config):
    """The models of a run."""

    policy: ModelSource = Field(description="The model to train: any causal language model of transformers.")
    value: ValueConfig = Field(
        default_factory=lambda: ValueConfig(shared=SharedValue()), description="The critic. Default: a shared trunk."
    )
    reference: ReferenceConfig | None = Field(
        None, description="The KL reference. Default: a frozen copy of the policy as it was before training."
    )


# --- data ---------------------------------------------------------------------------------------------------------


class PromptFile(Config):
    """Prompts in a file under one of the operator's data roots."""

    path: str = Field(
        min_length=1, max_length=4096, description="JSON Lines (`.jsonl`), or one prompt a line (`.txt`)."
    )
    field: str = Field("prompt", min_length=1, max_length=128, description="Name of the prompt's field in a JSON line.")


class PromptsConfig(OneOf):
    """The prompts a run draws from."""

    alternatives = ("inline", "file")

    inline: list[Annotated[str, StringConstraints(min_length=1, max_length=100_000)]] | None = Field(
        None, min_length=1, max_length=10_000, description="Prompts written in the spec."
    )
    file: PromptFile | None = Field(None, description="Prompts in a file.")
    max_tokens: int | None = Field(
        None, ge=1, le=1_000_000, description="Longest prompt in tokens; longer ones are left out, and counted."
    )
    shuffle: bool = Field(True, description="New order every pass; off: in file order.")


# --- rewards ------------------------------------------------------------------------------------------------------


class SentimentRule(Config):
    """VADER's compound score in [-1, 1] (Hutto and Gilbert 2014): 1 is very positive."""

    include_prompt: bool = Field(True, description="Score prompt and response, or the response alone.")


class LengthRule(Config):
    """1 at the target, falling linearly with the distance, not below -1."""

    target: int = Field(ge=1, le=1_000_000, description="Wanted length of the response, words.")


class RegexRule(Config):
    """1 where the pattern is found in the response, else 0."""

    pattern: str = Field(min_length=1, max_length=1000, description="Regular expression; searched, not anchored.")


class KeywordRule(Config):
    """The share of the words that occur in the response, without regard to case."""

    words: list[Annotated[str, StringConstraints(min_length=1, max_length=100)]] = Field(
        min_length=1, max_length=100, description="Words or phrases."
    )


class RepetitionRule(Config):
    """Minus the share of n-grams of the response that occurred before in it: 0 without repetition."""

    ngram: int = Field(3, ge=1, le=20, description="Length of the n-grams, words.")


RULES: dict[str, type[Config]] = {
    "sentiment": SentimentRule,
    "length": LengthRule,
    "regex": RegexRule,
    "keyword": KeywordRule,
    "repetition": RepetitionRule,
}
"""Name of every built-in rule and the model of its parameters."""


class RuleReward(Config):
    """A built-in scoring rule."""

    name: str = Field(min_length=1, max_length=64, description="One of the names in RULES, for example `sentiment`.")
    params: dict[str, Any] = Field(default_factory=dict, description="The rule's own parameters.")


class ModelReward(Config):
    """A sequence classifier with one label: its logit is the score."""

    source: ModelSource = Field(description="Any AutoModelForSequenceClassification; its own tokenizer is used.")
    max_tokens: int = Field(512, ge=8, le=131_072, description="Longer texts are cut on the left (the end decides).")
    include_prompt: bool = Field(True, description="Score prompt and response, or the response alone.")
    batch_size: int = Field(32, ge=1, le=4096, description="Texts scored at once.")


class RewardComponent(OneOf):
    """One term of the reward."""

    alternatives = ("rule", "model")

    name: Name = Field(description="Name in `env/reward/<name>_mean`.")
    weight: float = Field(1.0, ge=-1e6, le=1e6, description="Factor in the sum.")
    rule: RuleReward | None = Field(None, description="A built-in rule.")
    model: ModelReward | None = Field(None, description="A reward model.")


class ScoreScaling(StrEnum):
    """Running scaling of the summed scores before clipping (TRL `use_score_scaling`, `use_score_norm`)."""

    NONE = "none"
    SCALE = "scale"
    """Divide by the running standard deviation."""
    NORMALISE = "normalise"
    """Subtract the running mean and divide by the running standard deviation."""


# --- algorithm ----------------------------------------------------------------------------------------------------


class GenerationConfig(Config):
    """How responses are sampled. What is sampled is also what is scored: temperature enters both."""

    max_new_tokens: int = Field(32, ge=1, le=131_072, description="Longest response, tokens.")
    min_new_tokens: int = Field(1, ge=1, le=131_072, description="Shortest response, tokens: no end-of-text before it.")
    temperature: float = Field(1.0, gt=0.0, le=100.0, description="Divides the logits when sampling and when scoring.")
    top_k: int = Field(
        0, ge=0, description="Only 0 (off) is possible: cutting the distribution makes KL and ratio wrong."
    )
    top_p: float = Field(1.0, gt=0.0, le=1.0, description="Only 1 (off) is possible, for the same reason.")


class PPOConfig(Config):
    """The PPO update (Schulman et al. 2017, arXiv:1707.06347; Ziegler et al. 2019, arXiv:1909.08593)."""

    steps: int = Field(ge=1, le=10_000_000, description="Collect-and-optimise cycles.")
    batch_size: int = Field(128, ge=1, le=1_000_000, description="Responses collected per step, sequences.")
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
    clip_range: float = Field(0.2, gt=0.0, le=10.0, description="Policy ratio clip (TRL `cliprange`).")
    value_clip_range: float = Field(
        0.2, gt=0.0, le=1e6, description="Value clip around the old value, in value units (TRL `cliprange_value`)."
    )
    vf_coef: float = Field(0.1, ge=0.0, le=1e3, description="Weight of the value loss.")
    entropy_coef: float = Field(0.0, ge=0.0, le=1e3, description="Weight of the entropy bonus.")
    whiten_advantages: bool = Field(True, description="Whiten advantages over the batch.")
    whiten_rewards: bool = Field(False, description="Whiten per-token rewards, keeping their mean.")
    score_scaling: ScoreScaling = Field(ScoreScaling.NONE, description="Running scaling of the scores.")
    score_clip: float | None = Field(None, gt=0.0, description="Clip scores to +-this after scaling.")
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


class KLConfig(Config):
    """The penalty that keeps the policy near the reference."""

    penalty: KLPenalty = Field(
        KLPenalty.KL, description="kl: lp-ref; abs; mse: half its square; full: over the vocabulary."
    )
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
    schedule: Schedule = Field(Schedule.CONSTANT, description="Decay after the warm-up, to 0 at the last step.")
    warmup_steps: int = Field(0, ge=0, description="Steps of linear warm-up.")
    betas: tuple[float, float] = Field((0.9, 0.999), description="Adam's moment decays.")
    eps: float = Field(1e-8, gt=0.0, description="Adam's epsilon.")
    weight_decay: float = Field(0.0, ge=0.0, le=10.0, description="Decoupled weight decay.")
    max_grad_norm: float | None = Field(None, gt=0.0, description="Clip the gradient norm before every optimizer step.")


# --- run ----------------------------------------------------------------------------------------------------------


class CheckpointConfig(Config):
    """When the run can be resumed from. The last step is always saved."""

    every_steps: int = Field(10, ge=1, description="Steps between checkpoints.")
    keep_last: int = Field(2, ge=1, le=1000, description="Checkpoints kept.")


class LoggingConfig(Config):
    """What the run writes beside its metrics."""

    tensorboard: bool = Field(True, description="Write a TensorBoard directory.")
    samples_per_step: int = Field(4, ge=0, le=256, description="Responses stored per step.")


class Device(StrEnum):
    """Where to train."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class Precision(StrEnum):
    """Compute precision; weights and optimizer state are fp32 either way."""

    AUTO = "auto"
    """bf16 on a CUDA device that has it, else fp32."""
    FP32 = "fp32"
    BF16 = "bf16"


class ResourcesConfig(Config):
    """The machine as the engine sees it; the service adds queue, priority and run time."""

    device: Device = Field(Device.AUTO, description="auto: CUDA if there is one.")
    precision: Precision = Field(Precision.AUTO, description="Compute precision.")
    threads: int | None = Field(None, ge=1, le=1024, description="CPU threads. Default: what the worker gives the job.")


class TrainConfig(Config):
    """All that the engine needs to know of a run."""

    model: ModelConfig
    prompts: PromptsConfig
    rewards: list[RewardComponent] = Field(min_length=1, max_length=64, description="Terms of the reward.")
    generation: GenerationConfig = GenerationConfig()
    ppo: PPOConfig
    kl: KLConfig = KLConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    logging: LoggingConfig = LoggingConfig()
    resources: ResourcesConfig = ResourcesConfig()
    seed: int = Field(0, ge=0, lt=2**32, description="Seed of every random draw.")

    @property
    def minibatch_size(self) -> int:
        """Sequences per loss."""
        return min(self.ppo.minibatch_size or self.ppo.batch_size, self.ppo.batch_size)

    @property
    def microbatch_size(self) -> int:
        """Sequences per forward pass."""
        return min(self.ppo.microbatch_size or self.minibatch_size, self.minibatch_size)


# --- rules that span fields ---------------------------------------------------------------------------------------


class CrossCheck(Config):
    """A broken rule: the field to look at (path from the spec's root), a code and a sentence."""

    loc: tuple[str | int, ...]
    code: str
    detail: str
    allowed: tuple[str, ...] = ()


def cross_checks(config: TrainConfig) -> list[CrossCheck]:
    """All rules over several fields that `config` breaks; empty when it is sound."""
    return [*_size_checks(config), *_distribution_checks(config), *_reward_checks(config)]


def _size_checks(config: TrainConfig) -> list[CrossCheck]:
    ppo, found = config.ppo, []

    def bad(field: str, code: str, detail: str) -> None:
        found.append(CrossCheck(loc=("ppo", field), code=code, detail=detail))

    if ppo.minibatch_size is not None and ppo.minibatch_size > ppo.batch_size:
        bad("minibatch_size", "minibatch_too_large", f"must be at most batch_size ({ppo.batch_size})")
    if ppo.microbatch_size is not None and ppo.microbatch_size > config.minibatch_size:
        bad("microbatch_size", "microbatch_too_large", f"must be at most minibatch_size ({config.minibatch_size})")
    if config.optimizer.warmup_steps > ppo.steps:
        detail = f"must be at most ppo.steps ({ppo.steps})"
        found.append(CrossCheck(loc=("optimizer", "warmup_steps"), code="warmup_too_long", detail=detail))
    return found


def _distribution_checks(config: TrainConfig) -> list[CrossCheck]:
    generation, found = config.generation, []
    if generation.min_new_tokens > generation.max_new_tokens:
        detail = f"must be at most max_new_tokens ({generation.max_new_tokens})"
        found.append(CrossCheck(loc=("generation", "min_new_tokens"), code="min_above_max", detail=detail))
    for field, off in (("top_k", 0), ("top_p", 1.0)):
        if getattr(generation, field) != off:
            detail = f"must be {off:g} (off): KL and ratio are measured under the full distribution"
            found.append(CrossCheck(loc=("generation", field), code="truncated_sampling", detail=detail))
    reference = config.model.reference
    if reference is not None and reference.none is not None and config.kl.init_kl_coef > 0:
        detail = "must be 0 when model.reference is `none`: there is nothing to measure KL against"
        found.append(CrossCheck(loc=("kl", "init_kl_coef"), code="kl_without_reference", detail=detail))
    return found


def _reward_checks(config: TrainConfig) -> list[CrossCheck]:
    found, seen = [], set()
    for index, component in enumerate(config.rewards):
        if component.name in seen:
            detail = f"`{component.name}` is used twice"
            found.append(CrossCheck(loc=("rewards", index, "name"), code="duplicate_name", detail=detail))
        seen.add(component.name)
        found += _rule_checks(component, ("rewards", index, "rule"))
    return found


def _rule_checks(component: RewardComponent, loc: tuple[str | int, ...]) -> list[CrossCheck]:
    if component.rule is None:
        return []
    params = RULES.get(component.rule.name)
    if params is None:
        detail = f"no rule `{component.rule.name}`"
        allowed = tuple(RULES)
        return [CrossCheck(loc=(*loc, "name"), code="unknown_rule", detail=detail, allowed=allowed)]
    try:
        params.model_validate(component.rule.params)
    except ValidationError as error:
        return [
            CrossCheck(
                loc=(*loc, "params", *e["loc"]), code=e["type"], detail=e["msg"], allowed=tuple(params.model_fields)
            )
            for e in error.errors()
        ]
    return []
