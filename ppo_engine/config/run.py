"""A run beside its mathematics: evaluation, guards, checkpoints, logs and the machine."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from ppo_engine.config.base import Config
from ppo_engine.config.data import PromptsConfig


class Direction(StrEnum):
    """Which values of a metric are better."""

    UP = "up"
    DOWN = "down"


class EvaluationConfig(Config):
    """Fixed prompts with fixed seeds, answered before training, every so many steps, and at the end."""

    prompts: PromptsConfig = Field(description="The evaluation set; all of it is answered, in its order.")
    every_steps: int = Field(10, ge=1, le=10_000_000, description="Steps between evaluations.")
    temperature: float | None = Field(
        None, ge=0.0, le=100.0, description="0: the likeliest token. Default: generation.temperature."
    )
    max_new_tokens: int | None = Field(
        None, ge=1, le=131_072, description="Longest response, tokens. Default: generation.max_new_tokens."
    )
    seed: int = Field(0, ge=0, lt=2**32, description="Seed of the sampling, the same at every evaluation.")


class EarlyStop(Config):
    """Ends a run that no longer improves; it has then succeeded, with `stop_reason` early_stop."""

    metric: str = Field("eval/reward_mean", max_length=128, description="Metric to watch.")
    direction: Direction | None = Field(
        None, description="Which direction is better. Default: what the metric's own description says."
    )
    patience: int = Field(3, ge=1, le=1_000_000, description="Values in a row without an improvement.")
    min_delta: float = Field(0.0, ge=0.0, le=1e9, description="What counts as an improvement, in the metric's unit.")


class GuardAction(StrEnum):
    """What a guard does; each time it is an event of the job."""

    WARN = "warn"
    PAUSE = "pause"
    """Checkpoint, and wait for a person."""
    STOP = "stop"
    """Checkpoint, and end as succeeded, with `stop_reason` guard."""
    FAIL = "fail"
    """Checkpoint, and end as failed."""
    ROLLBACK = "rollback"
    """Go back to the last checkpoint before the trouble, with a smaller learning rate."""


class GuardRule(Config):
    """A condition on a metric, and what follows from it."""

    metric: str | None = Field(None, max_length=128, description="Metric to watch.")
    above: float | None = Field(None, description="Trips when the metric is above this.")
    below: float | None = Field(None, description="Trips when the metric is below this.")
    non_finite: bool = Field(
        False, description="Instead of a metric: trips when a loss, score, advantage or gradient is not finite."
    )
    for_steps: int = Field(1, ge=1, le=1_000_000, description="Steps in a row before it trips.")
    action: GuardAction = Field(GuardAction.WARN, description="What to do.")
    learning_rate_factor: float = Field(0.5, gt=0.0, le=1.0, description="With `rollback`: new rate / old rate.")
    max_times: int = Field(3, ge=1, le=1000, description="With `rollback`: after so many the run fails.")

    @model_validator(mode="after")
    def _one_condition(self) -> Self:
        conditions = [self.above is not None, self.below is not None, self.non_finite]
        if sum(conditions) != 1 or (self.metric is None) != self.non_finite:
            raise ValueError("give a `metric` with either `above` or `below`, or `non_finite` alone")
        return self


class CheckpointConfig(Config):
    """When the run can be resumed from. The last step is always saved."""

    every_steps: int = Field(10, ge=1, description="Steps between checkpoints.")
    keep_last: int = Field(2, ge=1, le=1000, description="Newest checkpoints kept.")
    keep_best: int = Field(
        0,
        ge=0,
        le=1000,
        description="Best checkpoints kept beside those; an evaluation that improves writes one.",
    )
    best_metric: str | None = Field(
        None,
        max_length=128,
        description="Metric that says which is best. Default: eval/reward_mean with an evaluation, else "
        "env/reward_mean.",
    )
    best_direction: Direction | None = Field(
        None, description="Which direction is better. Default: what the metric's own description says."
    )


class WandbMode(StrEnum):
    """Where wandb writes."""

    ONLINE = "online"
    """To the server; the worker's environment has the key."""
    OFFLINE = "offline"
    """To the run directory; `wandb sync` sends it later."""


class WandbConfig(Config):
    """A run of Weights & Biases."""

    project: str = Field("ppo-service", min_length=1, max_length=128, description="Project.")
    entity: str | None = Field(None, min_length=1, max_length=128, description="User or team.")
    group: str | None = Field(None, min_length=1, max_length=128, description="Group of runs.")
    tags: list[Annotated[str, StringConstraints(min_length=1, max_length=64)]] = Field(
        default_factory=list, max_length=32, description="Tags."
    )
    mode: WandbMode = Field(WandbMode.ONLINE, description="Online, or offline into the run directory.")


class LoggingConfig(Config):
    """What the run writes beside its metrics."""

    tensorboard: bool = Field(True, description="Write a TensorBoard directory.")
    wandb: WandbConfig | None = Field(None, description="Send metrics to Weights & Biases too (extra `wandb`).")
    samples_per_step: int = Field(4, ge=0, le=256, description="Responses stored per step.")
    token_values: bool = Field(
        False, description="Store logprobs, KL, value and advantage of every token of the stored responses."
    )


class Device(StrEnum):
    """Where to train."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class Precision(StrEnum):
    """Compute precision; weights and optimizer state are fp32 either way."""

    AUTO = "auto"
    """bf16 where the GPU, or the CPU (AMX, AVX512-BF16), multiplies it faster than fp32; else fp32."""
    FP32 = "fp32"
    BF16 = "bf16"


class ResourcesConfig(Config):
    """The machine as the engine sees it; the service adds queue, priority and run time."""

    device: Device = Field(Device.AUTO, description="auto: CUDA if there is one.")
    precision: Precision = Field(Precision.AUTO, description="Compute precision.")
    threads: int | None = Field(
        None, ge=1, le=1024, description="CPU threads of all its processes. Default: what the worker gives the job."
    )
    processes: int = Field(
        1,
        ge=1,
        le=64,
        description="Processes that share the work on each batch (data parallel), each with its own CUDA device, or "
        "all on the CPU. The numbers stay those of one process, but for rounding.",
    )
