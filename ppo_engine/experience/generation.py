"""Sampling responses. Legend: B sequences, P prompt tokens, T response tokens, A rows still running."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ppo_engine.experience.cache import make_cache
from ppo_engine.maths.logprobs import Distribution
from ppo_engine.models.policy import LanguageModel

_BLOCK = 256
"""Tokens of the vocabulary whose probabilities are summed first."""


class Responses(NamedTuple):
    """Sampled tokens, right-padded, and what the sampler thought of them."""

    ids: Tensor
    """[B, T] int64"""
    mask: Tensor
    """[B, T] bool; the end-of-text token counts as part of the response."""
    logprobs: Tensor
    """[B, T], 0 on padding."""
    ended: Tensor
    """[B] bool: with an end-of-text token or a stop text, not by length."""


@dataclass(frozen=True, slots=True)
class StopTexts:
    """Texts that end a response."""

    texts: Sequence[str]
    tokenizer: PreTrainedTokenizerBase

    def reached(self, ids: Sequence[int]) -> bool:
        """Whether the last of these response tokens completed one of the texts.

        Every token is at least one byte, so a text of n bytes lies within the last n tokens; a few more, because a
        token may begin in the middle of a character.
        """
        longest = max(len(text.encode()) for text in self.texts)
        tail = self.tokenizer.decode(list(ids[-longest - 3 :]), skip_special_tokens=True)
        return any(text in tail for text in self.texts)

    def cut(self, text: str) -> str:
        """The text before the first stop text."""
        ends = [at for stop in self.texts if (at := text.find(stop)) >= 0]
        return text[: min(ends)] if ends else text


Finished = Callable[[int, Sequence[int]], None]
"""Hears of a response as soon as it is complete: its row and its token ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How responses are drawn."""

    distribution: Distribution
    max_new_tokens: int
    pad_id: int
    uniform: Tensor | None
    """[B, max_new_tokens] fp64 in [0, 1): what each token is drawn with, the only source of randomness. None: take the
    likeliest token instead of drawing one."""
    stop: StopTexts | None = None
    """Texts that end a response, beside the end-of-text tokens."""


@torch.no_grad()
def sample(
    language: LanguageModel,
    prompt_ids: Tensor,
    prompt_mask: Tensor,
    how: Sampling,
    on_finished: Finished | None = None,
) -> Responses:
    """Sample one response per prompt, each until its end or `max_new_tokens`.

    Rows that ended leave the batch, so late tokens cost only the rows still running.

    Args:
        language: the policy, in eval mode (no dropout).
        prompt_ids, prompt_mask: [B, P], left-padded.
        on_finished: called once per row, in the order in which they end.
    """
    rows = torch.arange(len(prompt_ids), device=prompt_ids.device)
    drawn = _empty(len(rows), how.max_new_tokens, how.pad_id, rows.device)
    eos = torch.tensor(how.distribution.eos_ids, dtype=torch.long, device=rows.device)
    cache = make_cache(language.model, prompt_ids.shape[1] + how.max_new_tokens)
    attention, feed = prompt_mask, prompt_ids
    for t in range(how.max_new_tokens):
        hidden = language.trunk(feed, attention, cache=cache, use_cache=True)[:, -1]
        logits = how.distribution.shape(language.head(hidden), torch.full_like(rows, t))
        token, logprob = _draw(logits, None if how.uniform is None else how.uniform[rows, t])
        drawn.ids[rows, t], drawn.mask[rows, t] = token.squeeze(1), True
        drawn.logprobs[rows, t] = logprob.squeeze(1)
        running = ~(torch.isin(token.squeeze(1), eos) | _stopped(drawn.ids, rows, t, how.stop))
        drawn.ended[rows[~running]] = True
        last = t + 1 == how.max_new_tokens
        if last or not bool(running.all()):
            _tell(on_finished, drawn, rows if last else rows[~running], t + 1)
            cache.reorder_cache(running.nonzero().squeeze(1))  # type: ignore[arg-type]
            rows, token, attention = rows[running], token[running], attention[running]
        if last or len(rows) == 0:
            break
        attention = torch.cat([attention, torch.ones_like(attention[:, :1])], dim=1)
        feed = token
    width = int(drawn.mask.any(dim=0).sum())
    return Responses(drawn.ids[:, :width], drawn.mask[:, :width], drawn.logprobs[:, :width], drawn.ended)


def sample_in_parts(
    language: LanguageModel,
    prompt_ids: Tensor,
    prompt_mask: Tensor,
    how: Sampling,
    on_finished: Finished | None = None,
    *,
    parts: int,
) -> Responses:
    """As `sample`, so many times with some of the rows: what is held of a running row is held of fewer at once.

    Every row keeps its own random numbers and its place among its padding, so it is the same response but for rounding.
    """
    whole = _empty(len(prompt_ids), how.max_new_tokens, how.pad_id, prompt_ids.device)
    for rows in torch.arange(len(prompt_ids), device=prompt_ids.device).chunk(parts):
        own = how if how.uniform is None else replace(how, uniform=how.uniform[rows])
        drawn = sample(language, prompt_ids[rows], prompt_mask[rows], own, _behind(on_finished, int(rows[0])))
        width = slice(0, drawn.ids.shape[1])
        for all_rows, part in zip(whole[:3], drawn[:3], strict=True):
            all_rows[rows, width] = part.to(all_rows.dtype)
        whole.ended[rows] = drawn.ended
    width = slice(0, int(whole.mask.any(dim=0).sum()))
    return Responses(whole.ids[:, width], whole.mask[:, width], whole.logprobs[:, width], whole.ended)


def _behind(on_finished: Finished | None, first: int) -> Finished | None:
    """Hears of rows that are counted from `first`."""
    return None if on_finished is None else lambda row, ids: on_finished(first + row, ids)


def _empty(rows: int, columns: int, pad_id: int, device: torch.device) -> Responses:
    return Responses(
        ids=torch.full((rows, columns), pad_id, dtype=torch.long, device=device),
        mask=torch.zeros((rows, columns), dtype=torch.bool, device=device),
        logprobs=torch.zeros((rows, columns), device=device),
        ended=torch.zeros(rows, dtype=torch.bool, device=device),
    )


def uniform_numbers(rows: int, tokens: int, generator: torch.Generator) -> Tensor:
    """What to draw `tokens` tokens of `rows` responses with: [rows, tokens] fp64.

    All of them at once, so that no response depends on when others end, or on which process samples it.
    """
    return torch.rand((rows, tokens), dtype=torch.float64, device=generator.device, generator=generator)


def _draw(logits: Tensor, uniform: Tensor | None) -> tuple[Tensor, Tensor]:
    """Token ids [A, 1] and their log-probabilities [A, 1] from logits [A, V].

    One uniform number per row finds its place in the cumulative distribution: first the block of the vocabulary, by
    the blocks' sums, then the token in it, in fp64 so that no rare token is lost. A cumulative sum over the whole
    vocabulary took longer than the softmax, and `torch.multinomial` draws a number per token of the vocabulary.
    """
    weights = (logits - logits.amax(dim=-1, keepdim=True)).exp_()
    blocks = _block_sums(weights).double().cumsum(dim=-1)
    total = blocks[:, -1:]
    if uniform is None:
        token = logits.argmax(dim=-1, keepdim=True)
    else:
        place = uniform[:, None] * total
        block = torch.searchsorted(blocks, _below(place, total), right=True).clamp(max=blocks.shape[1] - 1)
        ids = block * _BLOCK + torch.arange(_BLOCK, device=logits.device)
        behind = ids >= logits.shape[1]
        inside = weights.gather(1, ids.masked_fill(behind, 0)).masked_fill(behind, 0.0).double().cumsum(dim=-1)
        place = place - F.pad(blocks, (1, 0)).gather(1, block)
        token = block * _BLOCK + torch.searchsorted(inside, _below(place, inside[:, -1:]), right=True)
        token = token.clamp(max=logits.shape[1] - 1)  # behind the end only where a logit is not a number
    return token, weights.gather(1, token).log() - total.log().to(logits.dtype)


def _block_sums(weights: Tensor) -> Tensor:
    """[A, V] -> [A, blocks]."""
    whole = weights.shape[1] // _BLOCK * _BLOCK
    sums = weights[:, :whole].unflatten(1, (-1, _BLOCK)).sum(dim=-1)
    return torch.cat([sums, weights[:, whole:].sum(dim=-1, keepdim=True)], dim=1)


def _below(place: Tensor, end: Tensor) -> Tensor:
    """Strictly below the end, so that what is found there has a probability; rounding may put it on or behind."""
    return torch.minimum(place, torch.nextafter(end, torch.zeros_like(end)))


def _stopped(ids: Tensor, rows: Tensor, t: int, stop: StopTexts | None) -> Tensor:
    """[A] bool: rows whose token at column `t` completed a stop text."""
    if stop is None:
        return torch.zeros_like(rows, dtype=torch.bool)
    found = [stop.reached(row) for row in ids[rows, : t + 1].tolist()]
    return torch.tensor(found, dtype=torch.bool, device=rows.device)


def _tell(on_finished: Finished | None, drawn: Responses, rows: Tensor, length: int) -> None:
    if on_finished is not None:
        for row in rows.tolist():
            on_finished(row, drawn.ids[row, :length].tolist())
