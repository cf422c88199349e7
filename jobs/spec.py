"""The spec of a job: what the engine trains, and what the service adds to it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from jobs.errors import InvalidSpec, Problem
from jobs.plain import Loc, pointer
from jobs.problems import check
from jobs.webhook_spec import Notify
from ppo_engine.config import (
    PRESETS,
    RULES,
    Config,
    CrossCheck,
    Name,
    PromptFile,
    PromptsConfig,
    ResourcesConfig,
    RewardComponent,
    TrainConfig,
    cross_checks,
    expand_preset,
)
from ppo_engine.schemas import MAX_SUBSCHEMAS, count_subschemas

JobName = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]+$")]
LabelKey = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$")]
LabelValue = Annotated[str, StringConstraints(max_length=128)]


class Resources(ResourcesConfig):
    """Where and how long the job may run."""

    queue: Name = Field("default", description="Only workers that serve this queue take the job.")
    priority: int = Field(0, ge=-100, le=100, description="Higher starts earlier within the queue.")
    max_runtime_seconds: int = Field(86_400, ge=1, le=31_536_000, description="Longest run, all attempts together.")


class Retry(Config):
    """What happens after an attempt that failed for no fault of the spec."""

    max_attempts: int = Field(3, ge=1, le=100, description="Attempts that may fail before the job does.")


class JobSpec(TrainConfig):
    """All that is known of a job at submit."""

    name: JobName = Field(description="A name for people; need not be unique.")
    resources: Resources = Resources()
    retry: Retry = Retry()
    labels: dict[LabelKey, LabelValue] = Field(
        default_factory=dict, max_length=32, description="Free key-value pairs to find jobs by."
    )
    notify: list[Notify] = Field(
        default_factory=list, max_length=8, description="Webhooks to tell, beside those that hear of all your jobs."
    )

    def train_config(self) -> TrainConfig:
        """The part that the engine reads."""
        resources = {name: getattr(self.resources, name) for name in ResourcesConfig.model_fields}
        parts = {name: getattr(self, name) for name in TrainConfig.model_fields}
        parts["prompts"] = _from_file(self.prompts)
        if self.ptx is not None:
            parts["ptx"] = self.ptx.model_copy(update={"texts": _from_file(self.ptx.texts)})
        if self.evaluation is not None:
            parts["evaluation"] = self.evaluation.model_copy(update={"prompts": _from_file(self.evaluation.prompts)})
        return TrainConfig(**{**parts, "resources": ResourcesConfig(**resources)})

    def prompt_sets(self) -> Iterator[tuple[Loc, PromptsConfig]]:
        """Place and value of every set of prompts or texts."""
        yield ("prompts",), self.prompts
        if self.ptx is not None:
            yield ("ptx", "texts"), self.ptx.texts
        if self.evaluation is not None:
            yield ("evaluation", "prompts"), self.evaluation.prompts

    def document(self) -> dict[str, Any]:
        """The spec as JSON, preset and defaults filled in and unused alternatives left out.

        Where a null overrules a preset it stays, so that the document can be submitted again and means the same.
        """
        document: dict[str, Any] = self.model_dump(mode="json", exclude_none=True)
        if self.ppo.preset is not None:
            _keep_nulls(document, PRESETS[self.ppo.preset].fragment)
        return document


def dataset_file(dataset_id: str) -> str:
    """Name of a dataset's rows in the folder of datasets, which is a root of every engine."""
    return f"{dataset_id}.jsonl"


def _from_file(prompts: PromptsConfig) -> PromptsConfig:
    """The same prompts as the engine reads them, which knows files and no datasets."""
    if prompts.dataset is None:
        return prompts
    file = PromptFile(path=dataset_file(prompts.dataset.id), field=prompts.dataset.field)
    return prompts.model_copy(update={"dataset": None, "file": file})


def parse_spec(data: Any) -> JobSpec:
    """Read a spec from parsed JSON: a preset's values first take the place of what it does not say.

    Only for what somebody submits. A stored document is complete, and read by `JobSpec.model_validate`.

    Raises:
        InvalidSpec: with every problem found, those that span several fields included.
    """
    resolved = expand_preset(data)
    spec, problems = check(JobSpec, resolved, _rules)
    if spec is None or problems:
        raise invalid_spec([_with_origin(problem, data, resolved) for problem in problems])
    return spec


_RIVALS: tuple[set[str], ...] = ({"shared", "separate"}, {"adaptive", "fixed"})
"""Fields that exclude each other: where one is chosen, a preset leaves the others alone."""


def _keep_nulls(document: dict[str, Any], fragment: Mapping[str, Any]) -> None:
    """Write null wherever a preset has a value and the spec has none."""
    for name, value in fragment.items():
        rivals = next((group for group in _RIVALS if name in group), {name})
        if rivals.isdisjoint(document):
            document[name] = None
        elif isinstance(value, Mapping) and isinstance(document.get(name), dict):
            _keep_nulls(document[name], value)


def _with_origin(problem: Problem, given: Any, resolved: Any) -> Problem:
    """Say of a problem that it is the preset's, where the author did not write what is wrong."""
    path = [part.replace("~1", "/").replace("~0", "~") for part in problem.pointer.split("/")[1:]]
    if _has(given, path) or not _has(resolved, path[:-1]):
        return problem
    if _has(resolved, path):
        origin = f"the preset `{given['ppo']['preset']}` sets it: give a value of your own, or null"
    elif not _has(given, path[:-1]) and not JobSpec.model_fields[path[0]].is_required():
        origin = f"the preset `{given['ppo']['preset']}` needs it"
    else:
        return problem
    return problem.model_copy(update={"detail": f"{problem.detail}; {origin}"})


def _has(document: Any, path: list[str]) -> bool:
    """Whether there is something at a path through objects."""
    for name in path:
        if not isinstance(document, Mapping) or name not in document:
            return False
        document = document[name]
    return True


def invalid_spec(problems: list[Problem]) -> InvalidSpec:
    """The error that reports `problems`."""
    first = f"{problems[0].pointer or 'the spec'}: {problems[0].detail}"
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return InvalidSpec(f"the spec cannot be run: {first}{more}", problems=problems)


def spec_hash(spec: JobSpec) -> str:
    """SHA-256 of the canonical JSON: equal for specs that mean the same run."""
    text = json.dumps(spec.document(), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a spec, with the names and parameters of the built-in rules."""
    schema = JobSpec.model_json_schema()
    rule = schema["$defs"]["RuleReward"]
    rule["properties"]["name"]["enum"] = list(RULES)
    rule["allOf"] = [_params_schema(name, model.model_json_schema()) for name, model in RULES.items()]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _params_schema(rule: str, params: Mapping[str, Any]) -> dict[str, Any]:
    return {"if": {"properties": {"name": {"const": rule}}}, "then": {"properties": {"params": params}}}


def _rules(spec: JobSpec) -> list[Problem | CrossCheck]:
    """Rules over several fields; parameters of rewards are reported in the words of all other fields."""
    return [*cross_checks(spec), *param_problems(spec.rewards)]


def param_problems(rewards: Sequence[RewardComponent]) -> list[Problem]:
    """What is wrong with the parameters of built-in rules; schemas beyond MAX_SUBSCHEMAS are not read."""
    found: list[Problem] = []
    subschemas = 0
    for index, component in enumerate(rewards):
        if component.rule is None or component.rule.name not in RULES:
            continue
        loc = ("rewards", index, "rule", "params")
        subschemas += count_subschemas(component.rule.params.get("json_schema"))
        if subschemas > MAX_SUBSCHEMAS:
            detail = f"the JSON schemas of all rewards have more than {MAX_SUBSCHEMAS} objects and booleans together"
            return [*found, Problem(pointer=pointer((*loc, "json_schema")), code="too_long", detail=detail)]
        found += check(RULES[component.rule.name], component.rule.params, loc=loc)[1]
    return found
