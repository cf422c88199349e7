"""The prompts of a run and its rewards, tried on a few of them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification

from ppo_engine.config import ModelReward, OnError, PromptsConfig, RewardComponent
from ppo_engine.data.prompts import load_prompts, token_ids
from ppo_engine.datasets.lines import Line
from ppo_engine.egress import Egress
from ppo_engine.errors import EngineError, PromptsUnusable, RewardFailed
from ppo_engine.plans import PromptFacts, Quantiles, RewardTrial
from ppo_engine.program.probe.findings import Findings
from ppo_engine.program.probe.outlines import other_outline
from ppo_engine.rewards import Exchange, build_scorer

MOST_TOKENISED = 20_000
"""Of a larger set a spread of so many is tokenised: somebody waits."""
_TRIED_PROMPTS = 4
_RESPONSES = (
    " It was wonderful, and I would gladly do it again.",
    " It was terrible, and nobody should ever have to do it.",
    " 42",
    ' {"answer": "yes"}',
)
"""Good, bad, a number, JSON: most rewards tell some of them apart."""
LARGEST_REWARD_MODEL = 500_000_000
"""Parameters of a reward model that is loaded for the trial; of a larger one only the config is read."""


def read_prompts(
    config: PromptsConfig, tokenizer: Any, roots: Sequence[Path], findings: Findings, pointer: str
) -> tuple[list[Line], PromptFacts | None]:
    """The prompts of a set and what is to be known of them; no facts without a tokenizer or usable prompts."""
    lines: list[Line] = []
    with findings.noting(pointer):
        lines = load_prompts(config, roots)
        if tokenizer is None:
            return lines, None
        spread = lines[:: -(-len(lines) // MOST_TOKENISED)]
        lengths = [len(ids) for ids in token_ids(spread, tokenizer, config.chat)]
        facts = _facts(lines, lengths, config.max_tokens)
        if not facts.usable:
            raise PromptsUnusable(f"none of {len(spread)} prompts has between 1 and {config.max_tokens} tokens")
        return lines, facts
    return lines, None


def _facts(lines: Sequence[Line], lengths: Sequence[int], max_tokens: int | None) -> PromptFacts:
    limit = max_tokens or max(lengths)
    usable = [length for length in lengths if 0 < length <= limit]
    distinct = {hashlib.sha256(repr(line.messages or line.text).encode()).digest() for line in lines}
    return PromptFacts(
        count=len(lines),
        tokenised=len(lengths),
        usable=len(usable),
        too_long=sum(length > limit for length in lengths),
        empty=sum(length == 0 for length in lengths),
        duplicates=len(lines) - len(distinct),
        tokens=_quantiles(usable) if usable else None,
    )


def _quantiles(lengths: Sequence[int]) -> Quantiles:
    low, middle, high = (int(value) for value in np.quantile(lengths, [0.05, 0.5, 0.95], method="nearest"))
    mean = round(sum(lengths) / len(lengths), 2)
    return Quantiles(minimum=min(lengths), p05=low, p50=middle, p95=high, maximum=max(lengths), mean=mean)


# --- rewards ------------------------------------------------------------------------------------------------------


def try_rewards(
    components: Sequence[RewardComponent], lines: Sequence[Line], roots: Sequence[Path], egress: Egress, found: Findings
) -> list[RewardTrial]:
    """Every component over the first prompts with canned responses."""
    exchanges = [
        Exchange(line.text, text, line.record, max(1, len(text) // 4), line.messages)
        for line in lines[:_TRIED_PROMPTS]
        for text in (*_RESPONSES, *_own_answer(line))
    ]
    return [_try(item, index, exchanges, roots, egress, found) for index, item in enumerate(components)]


def _own_answer(line: Line) -> list[str]:
    """What the prompt's line gives as its answer: a reward that compares must like it."""
    answer = line.record.get("answer")
    return [f" {answer}"] if isinstance(answer, str | int | float) else []


def _try(
    item: RewardComponent,
    index: int,
    exchanges: Sequence[Exchange],
    roots: Sequence[Path],
    egress: Egress,
    found: Findings,
) -> RewardTrial:
    pointer = f"/rewards/{index}"
    kind = next(name for name in item.alternatives if getattr(item, name) is not None)
    trial = RewardTrial(name=item.name, kind=kind, weight=item.weight, shadow=item.shadow, tried=0)
    try:
        if item.model is not None and _too_large(item.model, roots):
            return trial.model_copy(update={"note": "a large model: its weights were not loaded for this"})
        scorer = build_scorer([item], roots=roots, device=torch.device("cpu"), egress=egress)
        if not exchanges:
            return trial.model_copy(update={"note": "there is no prompt to try it on"})
        start = perf_counter()
        values = scorer.score(exchanges).components[item.name]
    except EngineError as error:
        _note(item, pointer, error, found)
        return trial.model_copy(update={"note": error.code})
    scored = [value for value in values if value is not None and isfinite(value)]
    seconds = round(perf_counter() - start, 3)
    trial = trial.model_copy(update={"tried": len(values), "seconds": seconds} | _range(scored))
    if scored and min(scored) == max(scored) and not item.shadow and item.weight:
        detail = f"`{item.name}` gave {scored[0]:g} to every one of {len(scored)} different texts"
        found.warn(
            pointer, "reward_never_varies", detail, "A reward that never varies teaches nothing: try it on more."
        )
    return trial


def _range(scored: Sequence[float]) -> dict[str, float]:
    if not scored:
        return {}
    return {"minimum": min(scored), "mean": sum(scored) / len(scored), "maximum": max(scored)}


def _note(item: RewardComponent, pointer: str, error: EngineError, found: Findings) -> None:
    """Failures that the spec allows in a run are no errors: these texts are not the policy's."""
    if item.on_error is not OnError.FAIL and type(error) is RewardFailed:
        found.warn(pointer, error.code, error.message, error.advice)
    else:
        found.fail(pointer, error)


def _too_large(reward: ModelReward, roots: Sequence[Path]) -> bool:
    return reward_model_parameters(reward, roots) > LARGEST_REWARD_MODEL


def reward_model_parameters(reward: ModelReward, roots: Sequence[Path]) -> int:
    """Parameters of a reward model, from its config; raises ModelUnavailable."""
    model = other_outline(reward.source, roots, AutoModelForSequenceClassification)
    return sum(p.numel() for p in model.parameters())
