"""Errands: short work of the engine outside of any run, each kind with what is asked and what is answered. Torch-free.

A request is checked at the front door and travels as JSON to the engine process of its own that does it; the answer is
one line on that process' pipe.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from ppo_engine.config import Config, Name, RewardComponent

MAX_TEXTS = 256
Text = Annotated[str, StringConstraints(max_length=100_000)]


class ErrandKind(StrEnum):
    """What can be asked."""

    PREVIEW_REWARD = "preview_reward"


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
