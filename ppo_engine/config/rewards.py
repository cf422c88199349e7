"""Rewards: the components of the score of a response, and the parameters of the built-in rules."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StringConstraints

from ppo_engine.config.base import Config, Name, OneOf
from ppo_engine.config.models import ModelSource
from ppo_engine.patterns import checked_pattern

Pattern = Annotated[str, StringConstraints(min_length=1, max_length=1000), AfterValidator(checked_pattern)]
Word = Annotated[str, StringConstraints(min_length=1, max_length=100)]


def _checked_schema(schema: dict[str, Any]) -> dict[str, Any]:
    # A tenth of a second to import, for every `ppo` command; few specs have a schema.
    from ppo_engine.schemas import checked_schema  # noqa: PLC0415

    return checked_schema(schema)


Schema = Annotated[dict[str, Any], AfterValidator(_checked_schema)]
SingleWord = Annotated[str, StringConstraints(pattern=r"^[^\s/-]+$", max_length=100)]


class SentimentRule(Config):
    """VADER's compound score in [-1, 1] (Hutto and Gilbert 2014): 1 is very positive."""

    include_prompt: bool = Field(True, description="Score prompt and response, or the response alone.")


class LengthRule(Config):
    """1 at the target, falling linearly with the distance, not below -1."""

    target: int = Field(ge=1, le=1_000_000, description="Wanted length of the response, words.")


class RegexRule(Config):
    """1 where the pattern is found in the response, else 0."""

    pattern: Pattern = Field(description="Regular expression; searched, not anchored.")


class KeywordRule(Config):
    """The share of the words that occur in the response, without regard to case."""

    words: list[Word] = Field(min_length=1, max_length=100, description="Words or phrases.")


class RepetitionRule(Config):
    """Minus the share of n-grams of the response that occurred before in it: 0 without repetition."""

    ngram: int = Field(3, ge=1, le=20, description="Length of the n-grams, words.")


class ExactRule(Config):
    """1 where the response is the answer, apart from space and case; else 0."""

    answer_field: str = Field("answer", min_length=1, max_length=128, description="Field of the prompt's JSON line.")
    pattern: Pattern | None = Field(
        None,
        description="Regular expression that finds the answer in the response: its first group, the last match.",
    )
    ignore_case: bool = Field(True, description="Compare without regard to case.")


class NumericRule(Config):
    r"""1 where the last number in the response, or in its last \boxed{}, equals the answer, else 0."""

    answer_field: str = Field("answer", min_length=1, max_length=128, description="Field of the prompt's JSON line.")
    tolerance: float = Field(1e-6, ge=0.0, le=1e6, description="Largest difference, relative to the answer if above 1.")


class JSONSchemaRule(Config):
    """1 for JSON that satisfies the schema, `partial` for JSON that does not, else 0."""

    json_schema: Schema = Field(description="JSON Schema; remote references are not followed.")
    partial: float = Field(0.0, ge=0.0, le=1.0, description="Score of well-formed JSON that breaks the schema.")


class ToxicityRule(Config):
    """Minus the share of words that are on a list of about 130 swear words and insults in English."""

    extra_words: list[SingleWord] = Field(default_factory=list, max_length=1000, description="Words to count too.")


class ReasoningGymRule(Config):
    """The scorer of a reasoning-gym task (optional extra `reasoning`); the prompt's JSON line carries its entry.

    It scores what stands in the last <answer>…</answer>, or without one the whole response. Tasks whose scorer runs
    text as code are refused.
    """

    task: str = Field(pattern=r"^[a-z0-9_]{1,64}$", description="Name of the task, for example `leg_counting`.")
    entry_field: str = Field("entry", min_length=1, max_length=128, description="Field with question and metadata.")


RULES: dict[str, type[Config]] = {
    "sentiment": SentimentRule,
    "length": LengthRule,
    "regex": RegexRule,
    "keyword": KeywordRule,
    "repetition": RepetitionRule,
    "exact": ExactRule,
    "numeric": NumericRule,
    "json_schema": JSONSchemaRule,
    "toxicity": ToxicityRule,
    "reasoning_gym": ReasoningGymRule,
}
"""Name of every built-in rule and the model of its parameters."""

RULES_WITH_ANSWERS = frozenset({"exact", "numeric", "reasoning_gym"})
"""Rules that read the prompt's JSON line."""


class RuleReward(Config):
    """A built-in scoring rule."""

    name: str = Field(min_length=1, max_length=64, description="One of the names in RULES, for example `sentiment`.")
    params: dict[str, Any] = Field(default_factory=dict, description="The rule's own parameters.")


class ModelReward(Config):
    """A sequence classifier with one label: its logit is the score."""

    source: ModelSource = Field(description="Any AutoModelForSequenceClassification; its own tokenizer is used.")
    max_tokens: int = Field(512, ge=8, le=131_072, description="Longer texts are cut on the left (the end decides).")
    include_prompt: bool = Field(True, description="Score prompt and response, or the response alone.")
    chat: bool = Field(
        False,
        description="Put prompt and response into the reward model's own chat template, as user and assistant. A "
        "prompt that is a list of messages is shown whole, without `prompts.chat.system`.",
    )
    batch_size: int = Field(32, ge=1, le=4096, description="Texts scored at once.")


def _host(url: str) -> str:
    parts = urlsplit(url)
    if not parts.hostname or parts.port == 0:  # a port beyond 65535 raises ValueError by itself
        raise ValueError("a URL needs a host, and a port above 0 if it has one")
    return url


ServerURL = Annotated[str, StringConstraints(pattern=r"^https?://[^\s@]+$", max_length=2048), AfterValidator(_host)]


class HTTPReward(Config):
    """A reward server: POST {"prompts": […], "responses": […], "records": […]} answers {"scores": […]}."""

    url: ServerURL = Field(
        description="Where to post. A host whose address is not public must be one that the operator allows.",
    )
    batch_size: int = Field(32, ge=1, le=4096, description="Responses per request.")
    concurrency: int = Field(4, ge=1, le=64, description="Requests under way at once.")
    timeout_seconds: float = Field(30.0, gt=0.0, le=3600.0, description="Longest wait for one answer.")
    retries: int = Field(3, ge=0, le=20, description="Further tries of a request, with growing pauses.")


class PluginReward(Config):
    """A reward function that the operator installed: an entry point of the group `ppo_engine.rewards`."""

    name: str = Field(min_length=1, max_length=128, description="Name of the entry point.")
    params: dict[str, Any] = Field(default_factory=dict, description="Arguments of its factory.")


class OnError(StrEnum):
    """What becomes of a response that a component could not score."""

    FAIL = "fail"
    """The run ends with the reason."""
    DROP = "drop"
    """The response is not trained on in this step."""
    ZERO = "zero"
    """The component counts 0."""


SHADOW = "Report this component, and train without it: responses that it cannot score are only counted."


class RewardComponent(OneOf):
    """One term of the reward."""

    alternatives = ("rule", "model", "http", "plugin")

    name: Name = Field(description="Name in `env/reward/<name>_mean`.")
    weight: float = Field(1.0, ge=-1e6, le=1e6, description="Factor in the sum.")
    shadow: bool = Field(False, description=SHADOW)
    on_error: OnError = Field(OnError.FAIL, description="What to do with a response that could not be scored.")
    max_error_rate: float = Field(
        0.1, ge=0.0, le=1.0, description="With `drop` or `zero`: the run ends when a larger share of a batch fails."
    )
    rule: RuleReward | None = Field(None, description="A built-in rule.")
    model: ModelReward | None = Field(None, description="A reward model.")
    http: HTTPReward | None = Field(None, description="A reward server.")
    plugin: PluginReward | None = Field(None, description="An installed Python function.")
