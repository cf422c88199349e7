"""Collecting experience: prompts -> responses -> scores. Legend: B sequences, T response tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ppo_engine.batch import Sequences, pad
from ppo_engine.config import GenerationConfig
from ppo_engine.data.prompts import Prompt
from ppo_engine.experience.generation import Sampling, StopTexts, sample
from ppo_engine.maths.logprobs import Distribution
from ppo_engine.models.policy import LanguageModel
from ppo_engine.rewards import Exchange, Scorer, Scores, ScoringSession
from ppo_engine.summary import Stopwatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """Sampled and scored responses of one step, in order of the prompts."""

    exchanges: list[Exchange]
    sequences: Sequences
    sampler_logprobs: Tensor
    """[B, T]"""
    finished: list[bool]
    """Whether each response ended by itself: with an end-of-text token or a stop text."""
    scores: Scores


@dataclass(frozen=True, slots=True, kw_only=True)
class Responder:
    """Samples responses of a policy to prompts, and has them scored."""

    language: LanguageModel
    tokenizer: PreTrainedTokenizerBase
    config: GenerationConfig
    distribution: Distribution
    generator: torch.Generator
    greedy: bool = False

    def collect(self, prompts: Sequence[Prompt], scorer: Scorer, clock: Stopwatch) -> Rollout:
        """Sample a response to each prompt, and score them; slow scorers start while others are still sampled.

        Raises:
            RewardFailed: the responses could not be scored.
        """
        session = scorer.open(len(prompts))
        exchanges: dict[int, Exchange] = {}

        def finished(row: int, ids: Sequence[int]) -> None:
            prompt = prompts[row]
            exchanges[row] = Exchange(prompt.text, self.text(ids), prompt.record, len(ids))
            session.add(row, exchanges[row])

        pad_id, device = pad_token_id(self.tokenizer), self.generator.device
        prompt_ids, prompt_mask = (t.to(device) for t in pad([p.ids for p in prompts], pad_id, left=True))
        with clock.phase("rollout"), _abandoned_on_error(session):
            drawn = sample(self.language, prompt_ids, prompt_mask, self._sampling(pad_id), finished)
        sequences = Sequences(
            prompt_ids=prompt_ids,
            prompt_mask=prompt_mask,
            response_ids=drawn.ids,
            response_present=drawn.mask,
            response_mask=drawn.mask,
        )
        with clock.phase("scoring"):
            scores = session.close()
        return Rollout(
            exchanges=[exchanges[row] for row in range(len(prompts))],
            sequences=sequences,
            sampler_logprobs=drawn.logprobs,
            finished=drawn.ended.tolist(),
            scores=scores,
        )

    def _sampling(self, pad_id: int) -> Sampling:
        return Sampling(
            distribution=self.distribution,
            max_new_tokens=self.config.max_new_tokens,
            pad_id=pad_id,
            generator=self.generator,
            greedy=self.greedy,
            stop=self._stop,
        )

    @property
    def _stop(self) -> StopTexts | None:
        return StopTexts(self.config.stop, self.tokenizer) if self.config.stop else None

    def text(self, ids: Sequence[int]) -> str:
        """A response as text, without special tokens and without a stop text and what follows it."""
        text = str(self.tokenizer.decode(list(ids), skip_special_tokens=True))
        return text if self._stop is None else self._stop.cut(text)


@contextmanager
def _abandoned_on_error(session: ScoringSession) -> Iterator[None]:
    try:
        yield
    except BaseException:
        session.abandon()
        raise


def repeated(prompts: Sequence[Prompt], samples_per_prompt: int, count: int) -> list[Prompt]:
    """Each prompt `samples_per_prompt` times in a row, `count` in all; the last one may come less often."""
    return [prompt for prompt in prompts for _ in range(samples_per_prompt)][:count]


def end_token_ids(language: LanguageModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """All tokens that end a response: those of the model's generation config, and the tokenizer's."""
    configured = getattr(language.model.generation_config, "eos_token_id", None)
    ids = configured if isinstance(configured, list) else [configured]
    return tuple(sorted({int(i) for i in [*ids, tokenizer.eos_token_id] if i is not None}))


def pad_token_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """Any valid id will do: masks, not ids, say what is padding."""
    candidates = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    return next(int(i) for i in candidates if isinstance(i, int))
