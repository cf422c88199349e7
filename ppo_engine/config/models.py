"""The models of a run: policy, critic and reference."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from ppo_engine.config.base import Config, OneOf


class ModelSource(OneOf):
    """Where a model comes from."""

    alternatives = ("path", "hub")

    path: str | None = Field(
        None,
        min_length=1,
        max_length=4096,
        description="Folder with config.json, tokenizer and safetensors weights, or a .gguf file, under a model root.",
    )
    hub: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?$",
        max_length=256,
        description="Hugging Face hub id, for example `HuggingFaceTB/SmolLM2-135M-Instruct`.",
    )
    revision: str | None = Field(
        None,
        pattern=r"^[\w-][\w.-]*(/[\w-][\w.-]*)*$",
        max_length=256,
        description="Hub revision: branch, tag or commit.",
    )


class ValueHeadInit(StrEnum):
    """How the value head starts."""

    ZERO = "zero"
    """Weights and bias 0: the first values are 0, not noise."""
    NORMAL = "normal"
    """Weights N(0, 0.2), bias 0 (TRL's `v_head_init_strategy="normal"`)."""


class SharedValue(Config):
    """A linear head, in fp32, on the policy's last hidden state."""

    init: ValueHeadInit = Field(ValueHeadInit.ZERO, description="Initialisation of the head.")


class SeparateValue(Config):
    """A critic with a trunk of its own: no gradient of the value loss reaches the policy."""

    source: ModelSource | None = Field(
        None,
        description="Initial trunk: a causal model, a reward model (its score head is taken over), or the `critic` "
        "folder of a checkpoint. It must share the policy's tokenizer. Default: the policy.",
    )
    init: ValueHeadInit = Field(
        ValueHeadInit.ZERO, description="Initialisation of the head, where the source brings none."
    )


class ValueConfig(OneOf):
    """The critic."""

    alternatives = ("shared", "separate")

    shared: SharedValue | None = Field(None, description="A head on the policy's own trunk.")
    separate: SeparateValue | None = Field(None, description="A model of its own.")


class NoReference(Config):
    """Train without a reference model; only possible without a KL penalty."""


class ReferenceConfig(OneOf):
    """The frozen model that KL is measured against."""

    alternatives = ("source", "none")

    source: ModelSource | None = Field(None, description="Another model with the policy's vocabulary.")
    none: NoReference | None = Field(None, description="No reference: needs `kl.init_kl_coef` 0.")


class LoRAConfig(Config):
    """Low-rank adapters on the policy (Hu et al. 2021, arXiv:2106.09685); the reference is the policy without them."""

    rank: int = Field(16, ge=1, le=1024, description="Rank of the update.")
    alpha: float = Field(32.0, gt=0.0, le=1e4, description="The update is scaled by alpha / rank.")
    target_modules: list[str] | None = Field(
        None,
        min_length=1,
        max_length=64,
        description="Names of the modules that get an adapter. Default: every linear layer but the language head.",
    )


class ModelConfig(Config):
    """The models of a run."""

    policy: ModelSource = Field(description="The model to train: any causal language model of transformers.")
    adapter: ModelSource | None = Field(
        None,
        description="A PEFT adapter, for example of supervised fine-tuning, merged into the policy before anything "
        "else: it is part of the reference too.",
    )
    lora: LoRAConfig | None = Field(
        None,
        description="Train low-rank adapters only. The checkpoint's `model` is then a PEFT adapter for the policy as "
        "it was before training, a merged `adapter` included.",
    )
    trainable_layers: int | None = Field(
        None,
        ge=1,
        le=1000,
        description="Train only the last so many layers (TRL `num_shared_layers` counts the others), the final norm "
        "and a head that is not tied. The frozen rest is computed once per rollout and shared with the reference.",
    )
    value: ValueConfig = Field(
        default_factory=lambda: ValueConfig(shared=SharedValue()), description="The critic. Default: a shared trunk."
    )
    reference: ReferenceConfig | None = Field(
        None, description="The KL reference. Default: a frozen copy of the policy as it was before training."
    )
    reference_reset_steps: int | None = Field(
        None, ge=1, le=10_000_000, description="Make the policy (its average, with ema_decay) the reference so often."
    )
    ema_decay: float | None = Field(
        None,
        ge=0.0,
        lt=1.0,
        description="Keep an exponential moving average of the policy, per step; it is what evaluation and reference "
        "resets use, and checkpoints hold it beside the policy.",
    )
    gradient_checkpointing: bool = Field(
        False, description="Compute activations again in the backward pass: less memory, a third more compute."
    )
