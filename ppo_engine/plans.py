"""What a look at a run before it starts finds out: the facts of its models, prompts, rewards and memory. Torch-free.

All sizes are in bytes and all lengths in tokens, as the names say.
"""

from __future__ import annotations

from pydantic import Field

from ppo_engine.config import Config, TrainConfig
from ppo_engine.errands import Answer


class ProbeRequest(Config):
    """The run to look at, every default filled in."""

    config: TrainConfig


class Remark(Answer):
    """Something that the run would fail of (then with this code), or that is worth a thought."""

    pointer: str = Field(description="JSON pointer to the part of the spec.")
    code: str = Field(description="For an error: the code that the failed job would have.")
    detail: str
    suggestion: str = ""


class ModelFacts(Answer):
    """The policy, read from its config, its tokenizer and the headers of its weights."""

    name: str = Field(description="As the spec names it.")
    architecture: str
    parameters: int = Field(description="Of the policy before adapters.")
    trainable_parameters: int = Field(description="What the optimizer moves, adapters and the critic included.")
    layers: int
    hidden_size: int
    vocabulary: int
    positions: int | None = Field(description="Longest text it can read, tokens; absent where the model sets no limit.")
    file_bytes: int | None = Field(description="Size of its weights on disk; absent for a model of the hub.")
    chat_template: bool = Field(description="Whether its tokenizer has one.")


class Quantiles(Answer):
    """How lengths are distributed, tokens."""

    minimum: int
    p05: int
    p50: int
    p95: int
    maximum: int
    mean: float


class PromptFacts(Answer):
    """A set of prompts, read and tokenised."""

    count: int = Field(description="Prompts in the set.")
    tokenised: int = Field(description="How many of them were tokenised for the numbers below: a spread of large sets.")
    usable: int = Field(description="Of those tokenised: drawn from in training.")
    too_long: int = Field(description="Of those tokenised: left out because they are longer than max_tokens.")
    empty: int = Field(description="Of those tokenised: left out because they have no token.")
    duplicates: int = Field(description="Prompts of the set that occur earlier in it.")
    tokens: Quantiles | None = Field(description="Lengths of the usable prompts, the chat template included.")


class RewardTrial(Answer):
    """What a component made of a few of the prompts with canned responses."""

    name: str
    kind: str
    weight: float
    shadow: bool
    tried: int = Field(description="Texts it was given; 0 where it was not tried, for the reason in `note`.")
    minimum: float | None = None
    mean: float | None = None
    maximum: float | None = None
    seconds: float | None = Field(None, description="How long it took for all of them, loading not included.")
    note: str = ""


class MemoryParts(Answer):
    """What one process of the run holds at its fullest, as `ppo_engine.program.probe.memory` counts it, bytes."""

    program_bytes: int
    weights_bytes: int
    optimizer_bytes: int
    gradients_bytes: int
    reference_bytes: int
    average_bytes: int
    reward_models_bytes: int
    activations_bytes: int
    logits_bytes: int
    kv_cache_bytes: int


class MemoryFacts(Answer):
    """An estimate of the memory of a run, against the machine that was looked at from."""

    device: str = Field(description="`cpu` or `cuda`.")
    device_name: str
    precision: str = Field(description="What the passes compute in: fp32 or bf16.")
    processes: int
    peak_bytes: int = Field(description="Of one process.")
    phase: str = Field(description="In which phase it is: loading, rollout or optimise.")
    loading_bytes: int
    rollout_bytes: int
    optimise_bytes: int
    parts: MemoryParts
    device_bytes: int = Field(description="All memory of one device, or of the machine.")
    available_bytes: int = Field(description="What of it was free just then: other work may hold the rest.")
    fits: bool = Field(description="Whether all processes that share a device stay below its memory.")


class DiskFacts(Answer):
    """What checkpoints take, bytes."""

    checkpoint_bytes: int = Field(description="One of them, about.")
    kept: int = Field(description="Most that are there at once, one being written included.")
    needed_bytes: int
    free_bytes: int | None = Field(description="Where the worker keeps runs.")


class Probe(Answer):
    """All that an engine process found out about a run before its start. What could not be read is absent."""

    errors: list[Remark] = Field(default_factory=list)
    warnings: list[Remark] = Field(default_factory=list)
    model: ModelFacts | None = None
    prompts: PromptFacts | None = None
    evaluation_prompts: PromptFacts | None = None
    rewards: list[RewardTrial] = Field(default_factory=list)
    memory: MemoryFacts | None = None
    disk: DiskFacts | None = None
