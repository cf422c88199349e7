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
from ppo_engine.experience.generation import Responses, Sampling, StopTexts, sample_in_parts, uniform_numbers
from ppo_engine.maths.logprobs import Distribution
from ppo_engine.models.policy import LanguageModel
from ppo_engine.ranks import ALONE, Ranks, Share
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
    """On the model's device."""
    greedy: bool = False
    ranks: Ranks = ALONE
    parts: int = 1
    """In how many turns a step's responses are sampled: more need less memory, and more time."""

    def collect(self, prompts: Sequence[Prompt], scorer: Scorer, clock: Stopwatch) -> Rollout:
        """Sample a response to each prompt, and score them; slow scorers start while others are still sampled.

        Every rank samples and scores its share, and returns the whole.

        Raises:
            RewardFailed: the responses could not be scored.
        """
        share = self.ranks.share(len(prompts))
        session = scorer.open(share)

        def finished(place: int, ids: Sequence[int]) -> None:
            session.add(place, self._exchange(prompts[share.rows[place]], ids))

        pad_id, device = pad_token_id(self.tokenizer), self.generator.device
        prompt_ids, prompt_mask = (t.to(device) for t in pad([p.ids for p in prompts], pad_id, left=True))
        own = share.index(device)
        with clock.phase("rollout"), _abandoned_on_error(session):
            how = self._sampling(len(prompts), own, pad_id)
            asked = prompt_ids[own], prompt_mask[own]
            mine = sample_in_parts(self.language, *asked, how, finished, parts=self.parts)
            drawn = _whole(mine, share, own, how)
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
            exchanges=[self._exchange(*pair) for pair in zip(prompts, _tokens(drawn), strict=True)],
            sequences=sequences,
            sampler_logprobs=drawn.logprobs,
            finished=drawn.ended.tolist(),
            scores=scores,
        )

    def _exchange(self, prompt: Prompt, ids: Sequence[int]) -> Exchange:
        return Exchange(prompt.text, self.text(ids), prompt.record, len(ids), prompt.messages)

    def _sampling(self, count: int, rows: Tensor, pad_id: int) -> Sampling:
        """How `rows` of `count` responses are drawn; advances the generator as if all of them were drawn here."""
        tokens = self.config.max_new_tokens
        return Sampling(
            distribution=self.distribution,
            max_new_tokens=tokens,
            pad_id=pad_id,
            uniform=None if self.greedy else uniform_numbers(count, tokens, self.generator)[rows],
            stop=self._stop,
        )

    @property
    def _stop(self) -> StopTexts | None:
        return StopTexts(self.config.stop, self.tokenizer) if self.config.stop else None

    def text(self, ids: Sequence[int]) -> str:
        """A response as text, without special tokens and without a stop text and what follows it."""
        text = str(self.tokenizer.decode(list(ids), skip_special_tokens=True))
        return text if self._stop is None else self._stop.cut(text)


def _whole(own: Responses, share: Share, rows: Tensor, how: Sampling) -> Responses:
    """The responses of all ranks from those of one, padded to the longest."""
    if share.ranks.count == 1:
        return own
    columns = slice(0, own.ids.shape[1])

    def whole(part: Tensor) -> Tensor:
        filled = part.new_zeros((share.count, how.max_new_tokens))
        filled[rows, columns] = part
        return share.whole(filled)

    mask = whole(own.mask)
    width = int(mask.any(dim=0).sum())
    ids = whole(own.ids).masked_fill(~mask, how.pad_id)
    ended = own.ended.new_zeros(share.count)
    ended[rows] = own.ended
    return Responses(ids[:, :width], mask[:, :width], whole(own.logprobs)[:, :width], share.whole(ended))


def _tokens(drawn: Responses) -> list[list[int]]:
    """Token ids of each response."""
    return [row[mask].tolist() for row, mask in zip(drawn.ids.cpu(), drawn.mask.cpu(), strict=True)]


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
