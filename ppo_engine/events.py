"""What the engine says on its pipe: one JSON object per line, each with its type in `event`.

The engine writes them on file descriptor 1 and nothing else does; logs go to standard error.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from ppo_engine.errors import Category


class Phase(StrEnum):
    """Where in its work a run is."""

    LOADING = "loading"
    ROLLOUT = "rollout"
    OPTIMISE = "optimise"
    EVALUATION = "evaluation"
    CHECKPOINT = "checkpoint"


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Started(_Event):
    """Models are loaded; training begins after `step` (0, or the step of the checkpoint resumed from)."""

    event: Literal["started"] = "started"
    step: int
    steps_total: int
    device: str
    precision: str
    parameters: int
    trainable_parameters: int
    prompts: int
    prompts_left_out: int = 0
    resumed_from: str | None = None


class PhaseEntered(_Event):
    """The run entered a phase."""

    event: Literal["phase"] = "phase"
    phase: Phase
    step: int


class TokenValues(_Event):
    """What is known of every token of one response, each in its order; a token not trained on is null."""

    tokens: list[str]
    logprobs: list[float | None]
    ref_logprobs: list[float | None] | None = None
    kl: list[float | None] | None = None
    values: list[float | None]
    advantages: list[float | None]


class Sample(_Event):
    """One response of a step, with its score."""

    prompt: str
    response: str
    score: float
    components: dict[str, float]
    kl: float | None = None
    response_tokens: int
    finished: bool
    """Ended with an end-of-text token or a stop text, not by length."""
    evaluation: bool = False
    """Answers a prompt of the evaluation set, after the step."""
    token_values: TokenValues | None = None
    """Only in the run directory's samples.jsonl."""


class StepDone(_Event):
    """A step ended: its scalar statistics by key of `ppo_engine.stats`, and some samples.

    Step 0 is the evaluation before training, and has its scalars only.
    """

    event: Literal["step"] = "step"
    step: int
    scalars: dict[str, float]
    samples: list[Sample] = []


class CheckpointSaved(_Event):
    """A checkpoint is durable on disk; nobody else has seen it yet."""

    event: Literal["checkpoint"] = "checkpoint"
    step: int
    path: str
    """Folder, relative to the run directory."""
    size_bytes: int
    sha256: str
    """Digest of the manifest, which holds the digests of all files."""
    score: float | None = None
    """Value of the metric that ranks checkpoints, with the sign that makes larger better; None: not ranked."""


class GuardTripped(_Event):
    """A guard's condition held for its number of steps."""

    event: Literal["guard"] = "guard"
    step: int
    rule: str
    """The condition in words, for example `objective/kl above 25 for 3 steps`."""
    action: str
    metric: str | None = None
    value: float | None = None
    message: str = ""


class RolledBack(_Event):
    """The run went back to the checkpoint of `to_step` (0: the beginning): what it reported after that is void."""

    event: Literal["rolled_back"] = "rolled_back"
    step: int
    to_step: int
    learning_rate_factor: float
    """Of all rollbacks together."""


class Outcome(StrEnum):
    """How a run that did not fail ended."""

    COMPLETED = "completed"
    STOPPED = "stopped"
    """Asked to stop: the last step is checkpointed."""
    PAUSED = "paused"
    """A guard asked for a person: the last step is checkpointed."""


class Finished(_Event):
    """The run ended without an error."""

    event: Literal["finished"] = "finished"
    outcome: Outcome
    step: int
    reason: str | None = None
    """Why a completed or paused run ended before its last step: `early_stop` or `guard`."""


class Failed(_Event):
    """The run ended with an error."""

    event: Literal["failed"] = "failed"
    code: str
    category: Category
    message: str
    retryable: bool
    suggestion: str = ""
    phase: Phase | None = None
    step: int


class Answered(_Event):
    """An errand is done: the last word of the process that did it."""

    event: Literal["answered"] = "answered"
    answer: dict[str, Any]


Event = Annotated[
    Started | PhaseEntered | StepDone | CheckpointSaved | GuardTripped | RolledBack | Finished | Failed | Answered,
    Field(discriminator="event"),
]

_ADAPTER: TypeAdapter[Event] = TypeAdapter(Event)


def parse(line: str | bytes) -> Event:
    """Parse one line of the pipe; raises pydantic.ValidationError on anything else."""
    return _ADAPTER.validate_json(line)
