"""Sampling responses. Legend: B sequences, P prompt tokens, T response tokens, A rows still running."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache

from ppo_engine.logprobs import Distribution
from ppo_engine.models import LanguageModel


class Responses(NamedTuple):
    """Sampled tokens, right-padded, and what the sampler thought of them."""

    ids: Tensor
    """[B, T] int64"""
    mask: Tensor
    """[B, T] bool; the end-of-text token counts as part of the response."""
    logprobs: Tensor
    """[B, T], 0 on padding."""


@torch.no_grad()
def sample(
    language: LanguageModel,
    prompt_ids: Tensor,
    prompt_mask: Tensor,
    distribution: Distribution,
    *,
    max_new_tokens: int,
    pad_id: int,
    generator: torch.Generator,
) -> Responses:
    """Sample one response per prompt from `distribution`, each until an end-of-text token or `max_new_tokens`.

    Rows that ended leave the batch, so late tokens cost only the rows still running.

    Args:
        language: the policy, in eval mode (no dropout).
        prompt_ids, prompt_mask: [B, P], left-padded.
        generator: the only source of randomness, on the model's device.
    """
    rows = torch.arange(len(prompt_ids), device=prompt_ids.device)
    shape = (len(rows), max_new_tokens)
    ids = torch.full(shape, pad_id, dtype=torch.long, device=rows.device)
    mask = torch.zeros(shape, dtype=torch.bool, device=rows.device)
    logprobs = torch.zeros(shape, device=rows.device)
    eos = torch.tensor(distribution.eos_ids, dtype=torch.long, device=rows.device)
    cache = DynamicCache(config=language.model.config)
    attention, feed = prompt_mask, prompt_ids
    for t in range(max_new_tokens):
        hidden = language.trunk(feed, attention, cache=cache, use_cache=True)[:, -1]
        logits = distribution.shape(language.head(hidden), torch.full_like(rows, t))
        table = logits.log_softmax(dim=-1)
        token = torch.multinomial(table.exp(), 1, generator=generator)
        ids[rows, t], mask[rows, t] = token.squeeze(1), True
        logprobs[rows, t] = table.gather(1, token).squeeze(1)
        running = ~torch.isin(token.squeeze(1), eos)
        if not bool(running.all()):
            cache.reorder_cache(running.nonzero().squeeze(1))  # type: ignore[arg-type]
            rows, token, attention = rows[running], token[running], attention[running]
        if len(rows) == 0:
            break
        attention = torch.cat([attention, torch.ones_like(attention[:, :1])], dim=1)
        feed = token
    width = int(mask.any(dim=0).sum())
    return Responses(ids[:, :width], mask[:, :width], logprobs[:, :width])
