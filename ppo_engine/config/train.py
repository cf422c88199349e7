"""The whole configuration of a run, as the engine reads it."""

from __future__ import annotations

from pydantic import Field

from ppo_engine.config.algorithm import GenerationConfig, KLConfig, OptimizerConfig, PPOConfig
from ppo_engine.config.base import Config
from ppo_engine.config.data import PromptsConfig, PTXConfig
from ppo_engine.config.models import ModelConfig
from ppo_engine.config.rewards import RewardComponent
from ppo_engine.config.run import (
    CheckpointConfig,
    EarlyStop,
    EvaluationConfig,
    GuardRule,
    LoggingConfig,
    ResourcesConfig,
)


class TrainConfig(Config):
    """All that the engine needs to know of a run."""

    model: ModelConfig
    prompts: PromptsConfig
    rewards: list[RewardComponent] = Field(min_length=1, max_length=64, description="Terms of the reward.")
    generation: GenerationConfig = GenerationConfig()
    ppo: PPOConfig
    kl: KLConfig = KLConfig()
    ptx: PTXConfig | None = Field(None, description="Language-model loss on ordinary text beside PPO.")
    optimizer: OptimizerConfig = OptimizerConfig()
    evaluation: EvaluationConfig | None = Field(None, description="Regular evaluation on fixed prompts.")
    early_stop: EarlyStop | None = Field(None, description="End when a metric no longer improves.")
    guards: list[GuardRule] = Field(default_factory=list, max_length=32, description="Conditions to act upon.")
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

    @property
    def half_microbatch_size(self) -> int | None:
        """Half of what one process now passes forward at once, sequences; None where that is one already."""
        share = -(-self.minibatch_size // self.resources.processes)
        return min(self.microbatch_size, share) // 2 or None

    @property
    def responses_per_process(self) -> int:
        """Sequences that one process samples in a step."""
        return -(-self.ppo.batch_size // self.resources.processes)

    def with_microbatch_size(self, sequences: int) -> TrainConfig:
        """The same run with other microbatches."""
        return self.model_copy(update={"ppo": self.ppo.model_copy(update={"microbatch_size": sequences})})

    @property
    def best_metric(self) -> str:
        """The metric that ranks checkpoints."""
        return self.checkpoint.best_metric or ("eval/reward_mean" if self.evaluation else "env/reward_mean")
