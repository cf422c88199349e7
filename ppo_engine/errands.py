"""Errands: short work of the engine outside of any run, each kind with what is asked and what is answered. Torch-free.

A request is checked at the front door and travels as JSON to the engine process of its own that does it; the answer is
one line on that process' pipe.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from ppo_engine.config import (
    ChatConfig,
    Config,
    GenerationConfig,
    ModelConfig,
    Name,
    ResourcesConfig,
    RewardComponent,
    StopString,
)

MAX_TEXTS = 256
MAX_TOKENS = 2**18
"""Of all responses of one generation together."""
Text = Annotated[str, StringConstraints(max_length=100_000)]


class ErrandKind(StrEnum):
    """What can be asked."""

    PREVIEW_REWARD = "preview_reward"
    GENERATE = "generate"
    PROBE = "probe"
    """Look at a run before it starts, for a plan."""
    EXPORT = "export"
    """Merge a checkpoint's adapter into its model."""
    VERIFY_RESUME = "verify_resume"
    """Replay steps from a checkpoint, and compare them with what was recorded."""


class Answer(BaseModel):
    """Part of an answer; unknown fields of a newer engine are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


# --- reward preview -----------------------------------------------------------------------------------------------


class PreviewText(Config):
    """A prompt and a response to it, to be scored."""

    prompt: Text = Field(description="As a user would write it.")
    response: Text = Field(description="What a model might answer.")
    record: dict[str, Any] = Field(
        default_factory=dict, description="What the prompt's JSON line would hold, for example `answer`."
    )


class PreviewRequest(Config):
    """The rewards of a spec, and texts to try them on."""

    rewards: list[RewardComponent] = Field(min_length=1, max_length=64, description="As in a spec.")
    texts: list[PreviewText] = Field(min_length=1, max_length=MAX_TEXTS, description="What is scored.")
    queue: Name = Field("default", description="Only workers that serve this queue do it.")


class Histogram(Answer):
    """How many values lie between neighbouring edges; the last bin holds its upper edge."""

    edges: list[float]
    counts: list[int]


class Spread(Answer):
    """How a reward's values lie, and signs that it teaches little."""

    count: int
    mean: float
    std: float
    """Population standard deviation."""
    minimum: float
    maximum: float
    quantiles: dict[str, float]
    """p05, p25, p50, p75 and p95, by linear interpolation."""
    histogram: Histogram
    share_at_minimum: float
    share_at_maximum: float
    """Shares of values at an end of the range: a saturated reward has many. 1 where all values are equal."""
    length_correlation: float | None
    """Pearson's r with the response's characters; None where one of the two does not vary."""
    zero_spread_share: float | None
    """Of the prompts with several scored responses, the share whose responses all got the same value: nothing is
    learned from those."""


class ComponentPreview(Answer):
    """One component over all texts."""

    name: str
    weight: float
    shadow: bool
    scored: int
    failed: int
    error: str | None
    """Why it scored nothing at all."""
    spread: Spread | None
    repeat_difference: float | None
    """Largest difference of a text's value between two scorings; 0 for a reward that repeats itself."""
    seconds: float
    """Of the first scoring."""


class TextScore(Answer):
    """One text's values."""

    index: int
    total: float | None
    """Weighted sum without shadows; None where a component that the run would need failed."""
    components: dict[str, float]
    """Before weights; without those that failed."""
    errors: dict[str, str]
    """Reason by component."""


class Finding(Answer):
    """Something about a reward that its author should know."""

    code: str
    component: str | None
    """None: the weighted sum."""
    message: str


class RewardPreview(Answer):
    """What the rewards of a spec say of some texts."""

    texts: int
    groups: int
    """Prompts with more than one response."""
    total: Spread | None
    components: list[ComponentPreview]
    scores: list[TextScore]
    findings: list[Finding]
    seconds: float


# --- generation ---------------------------------------------------------------------------------------------------


def _step_in_words(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


BASE, BEST, LAST = "base", "best", "last"
StepName = Annotated[
    str,
    BeforeValidator(_step_in_words, json_schema_input_type=str | int),
    StringConstraints(pattern=r"^(base|best|last|[0-9]{1,18})$"),
]
"""Weights of a job: those before training, of its best or last checkpoint, or of the checkpoint of a step."""


class GenerationRequest(Config):
    """Prompts, whose answers are wanted, and how they are sampled."""

    prompts: list[Annotated[str, StringConstraints(min_length=1, max_length=100_000)]] = Field(
        min_length=1, max_length=64, description="As in the job's spec: with `prompts.chat` there, what a user says."
    )
    records: list[dict[str, Any]] = Field(
        default_factory=list,
        max_length=64,
        description="With `score`: one for each prompt, with what its JSON line would hold, for example `answer`.",
    )
    step: StepName = Field(LAST, description="`last`, `best`, the step of a checkpoint, or `base`: before training.")
    compare_to: list[StepName] = Field(
        default_factory=list, max_length=4, description="More of these; each answers the same prompts."
    )
    samples_per_prompt: int = Field(1, ge=1, le=16, description="Responses to each prompt.")
    max_new_tokens: int | None = Field(
        None, ge=1, le=4096, description="Longest response, tokens. Default: the job's generation.max_new_tokens."
    )
    temperature: float | None = Field(
        None, ge=0.0, le=100.0, description="0: the likeliest token. Default: the job's generation.temperature."
    )
    stop: list[StopString] | None = Field(
        None, max_length=16, description="A response also ends with one of these. Default: the job's generation.stop."
    )
    seed: int = Field(0, ge=0, lt=2**32, description="Of the sampling; the same for each of the compared weights.")
    score: bool = Field(False, description="Score the responses with the job's rewards.")

    @property
    def steps(self) -> list[str]:
        """All weights that answer."""
        return [self.step, *self.compare_to]


class Weights(Config):
    """Which weights answer, and where they are."""

    name: str
    """As asked for."""
    step: int | None = None
    """None: before training."""
    folder: str | None = None
    """Checkpoint, relative to the run directory."""


class GenerationWork(Config):
    """A generation as the engine gets it: the request, and what it needs to know of the job."""

    job_id: str
    request: GenerationRequest
    weights: list[Weights]
    model: ModelConfig
    generation: GenerationConfig
    chat: ChatConfig | None = None
    rewards: list[RewardComponent]
    resources: ResourcesConfig


class GeneratedResponse(Answer):
    """One response to a prompt."""

    prompt: int
    """Place among the prompts."""
    sample: int
    response: str
    response_tokens: int
    finished: bool
    """Ended with an end-of-text token or a stop text, not by length."""
    score: float | None = None
    """Weighted sum of the job's rewards; None without `score`, or where the run would not have one."""
    components: dict[str, float] = {}
    errors: dict[str, str] = {}
    """Why a component has no value, by its name."""


class GeneratedBy(Answer):
    """What one set of weights answered, prompt by prompt."""

    name: str
    """As asked for: `base`, `best`, `last` or a step."""
    step: int | None
    """Step of the checkpoint; None: before training."""
    responses: list[GeneratedResponse]
    mean_score: float | None
    mean_tokens: float
    seconds: float


class Generation(Answer):
    """Answers to the same prompts, by the weights asked for, in that order."""

    prompts: list[str]
    answers: list[GeneratedBy]


# --- export -------------------------------------------------------------------------------------------------------


class ExportWork(Config):
    """A checkpoint of a LoRA run, whose model is wanted whole."""

    job_id: str
    step: int
    folder: str
    """Checkpoint, relative to the run directory."""
    model: ModelConfig
    resources: ResourcesConfig


class Exported(Answer):
    """A merged model lies in the run directory."""

    step: int
    sha256: str
    """Of its manifest."""
