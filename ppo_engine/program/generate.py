"""Answers of a job's policy to given prompts: before training, and as its checkpoints have it."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch
from transformers import PreTrainedTokenizerBase

from ppo_engine import runtime
from ppo_engine.build import positions
from ppo_engine.config import GenerationConfig, ModelConfig
from ppo_engine.data.prompts import Prompt, PromptSource
from ppo_engine.datasets.lines import Line
from ppo_engine.egress import Egress
from ppo_engine.errands import GeneratedBy, GeneratedResponse, Generation, GenerationWork, Weights
from ppo_engine.errors import CheckpointGone, InvalidConfig, PromptsUnusable
from ppo_engine.experience.rollout import Responder, Rollout, end_token_ids, repeated
from ppo_engine.maths.logprobs import Distribution
from ppo_engine.models.conversion import without_gguf
from ppo_engine.models.loading import load_tokenizer
from ppo_engine.models.networks import load_policy, load_trained
from ppo_engine.models.policy import LanguageModel
from ppo_engine.rewards import Exchange, Scorer
from ppo_engine.rewards.trial import Panel
from ppo_engine.rundir import RunDir
from ppo_engine.summary import Stopwatch

_BATCH = 32
"""Responses sampled at once."""
_UNSCORED = Scorer(())


def generate(
    work: GenerationWork, *, run: RunDir, roots: Sequence[Path], egress: Egress, threads: int | None
) -> Generation:
    """Answer every prompt with each of the weights, one after the other: two models may not fit.

    Raises:
        EngineError: a model or checkpoint cannot be used, or a prompt.
    """
    asked = work.request
    device = runtime.start(work.resources, threads=threads).device
    folders = [*roots, run.converted]
    model = without_gguf(work.model, roots, run.converted)
    tokenizer = load_tokenizer(model.policy, folders)
    prompts = _prompts(work, tokenizer)
    panel = Panel(work.rewards, roots=roots, device=device, egress=egress) if asked.score else None
    dtype = runtime.compute_dtype(work.resources, device)
    answers = []
    for weights in work.weights:
        start = perf_counter()
        language = _load(model, weights, run, folders)
        for parameter in language.parameters():  # not its buffers: rotary frequencies need fp32
            parameter.data = parameter.data.to(dtype)
        drawn = _answer(language.to(device).eval(), tokenizer, prompts, work, device)
        answers.append(_told(weights, drawn, panel, asked.samples_per_prompt, start))
        del language
        gc.collect()
    return Generation(prompts=asked.prompts, answers=answers)


def _prompts(work: GenerationWork, tokenizer: PreTrainedTokenizerBase) -> list[Prompt]:
    """The prompts as the job's policy sees them, each as often as it is to be answered."""
    asked = work.request
    records = asked.records or [{} for _ in asked.prompts]
    lines = [Line(text, record=record) for text, record in zip(asked.prompts, records, strict=True)]
    found = PromptSource(lines, tokenizer, max_tokens=None, shuffle=False, seed=0, chat=work.chat).all
    if len(found) < len(lines):
        missing = min(set(range(len(lines))) - {prompt.index for prompt in found})
        raise PromptsUnusable(f"prompt {missing} has no token of the model's")
    count = asked.samples_per_prompt
    return repeated(found, count, count * len(found))


def _load(model: ModelConfig, weights: Weights, run: RunDir, roots: Sequence[Path]) -> LanguageModel:
    if weights.folder is None:
        return load_policy(model, roots)
    folder = run.root / weights.folder
    if not folder.is_dir():
        raise CheckpointGone(f"the checkpoint of step {weights.step} is no longer kept")
    return load_trained(model, folder, roots)


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A response, and whether it ended by itself."""

    exchange: Exchange
    finished: bool


def _answer(
    language: LanguageModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    work: GenerationWork,
    device: torch.device,
) -> list[_Drawn]:
    generation = _generation(work)
    longest, limit = max(len(prompt.ids) for prompt in prompts), positions(language)
    if limit is not None and longest + generation.max_new_tokens > limit:
        raise InvalidConfig(
            f"the longest prompt ({longest} tokens) and max_new_tokens ({generation.max_new_tokens}) need more "
            f"positions than the model has ({limit})",
            suggestion="Lower max_new_tokens, or shorten the prompt.",
        )
    responder = Responder(
        language=language,
        tokenizer=tokenizer,
        config=generation,
        distribution=Distribution(
            temperature=generation.temperature,
            min_new_tokens=generation.min_new_tokens,
            eos_ids=end_token_ids(language, tokenizer),
        ),
        generator=torch.Generator(device).manual_seed(work.request.seed),
        greedy=work.request.temperature == 0.0,
    )
    batches = [prompts[start : start + _BATCH] for start in range(0, len(prompts), _BATCH)]
    return [drawn for batch in batches for drawn in _drawn(responder.collect(batch, _UNSCORED, Stopwatch()))]


def _drawn(rollout: Rollout) -> list[_Drawn]:
    return [_Drawn(*pair) for pair in zip(rollout.exchanges, rollout.finished, strict=True)]


def _generation(work: GenerationWork) -> GenerationConfig:
    """The job's sampling, changed as asked."""
    asked, own = work.request, work.generation
    longest = asked.max_new_tokens or own.max_new_tokens
    return own.model_copy(
        update={
            "max_new_tokens": longest,
            "min_new_tokens": min(own.min_new_tokens, longest),
            "temperature": asked.temperature or own.temperature,
            "stop": own.stop if asked.stop is None else asked.stop,
        }
    )


def _told(weights: Weights, drawn: Sequence[_Drawn], panel: Panel | None, samples: int, start: float) -> GeneratedBy:
    exchanges = [one.exchange for one in drawn]
    trials = [] if panel is None else panel.score(exchanges)
    sums = [None] * len(drawn) if panel is None else panel.sums(trials)
    scored = [value for value in sums if value is not None]
    return GeneratedBy(
        name=weights.name,
        step=weights.step,
        responses=[
            GeneratedResponse(
                prompt=index // samples,
                sample=index % samples,
                response=one.exchange.response,
                response_tokens=one.exchange.response_tokens,
                finished=one.finished,
                score=sums[index],
                components={} if panel is None else panel.values_at(trials, index),
                errors={} if panel is None else panel.errors_at(trials, index),
            )
            for index, one in enumerate(drawn)
        ],
        mean_score=sum(scored) / len(scored) if scored else None,
        mean_tokens=sum(exchange.response_tokens for exchange in exchanges) / len(exchanges),
        seconds=perf_counter() - start,
    )
