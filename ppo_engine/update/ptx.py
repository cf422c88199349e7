"""PPO-ptx: a language-model loss on ordinary text beside PPO, so that the policy does not forget how to write.

Source: Ouyang et al. 2022, arXiv:2203.02155, eq. 2. Legend: B texts, L tokens of the longest.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ppo_engine.batch import Sequences, make_sequences
from ppo_engine.data.cursor import Cursor
from ppo_engine.errors import NonFinite, PromptsUnusable
from ppo_engine.maths.masked import masked_sum
from ppo_engine.ranks import ALONE, Ranks

DEFAULT_MAX_TOKENS = 512
"""Where texts are cut unless `texts.max_tokens` says otherwise."""

_STREAM = 1
"""Keeps the order of the texts apart from that of as many prompts under the same seed."""


class TextSource:
    """Draws tokenised texts pass after pass over the set.

    Each text is cut at `max_tokens`; one that is not cut ends with the tokenizer's end-of-text token, whose prediction
    counts like any other. A text that leaves nothing to predict is left out.

    Raises:
        PromptsUnusable: no text is left.
    """

    def __init__(self, texts: Sequence[str], tokenizer: Any, *, max_tokens: int, shuffle: bool, seed: int) -> None:
        rows = [tokenize(text, tokenizer, max_tokens) for text in texts]
        self._rows = [row for row in rows if len(row) > 1]
        if not self._rows:
            raise PromptsUnusable(f"none of the {len(texts)} ptx texts has two tokens")
        digest = hashlib.sha256(json.dumps([shuffle, seed, self._rows]).encode()).hexdigest()
        self._cursor = Cursor(
            len(self._rows), shuffle=shuffle, seed=(seed, _STREAM), fingerprint=digest, what="ptx text"
        )

    def __len__(self) -> int:
        return len(self._rows)

    def draw(self, count: int) -> Sequences:
        """The next `count` texts: of each, the first token is given and all others are predicted."""
        rows = [self._rows[place] for place in self._cursor.draw(count)]
        return make_sequences([row[:1] for row in rows], [row[1:] for row in rows], pad_id=0)

    def state_dict(self) -> dict[str, int | str]:
        """The place in the order, and a digest of all that the order depends on."""
        return self._cursor.state_dict()

    def load_state_dict(self, state: Mapping[str, int | str]) -> None:
        """Continue where `state` was taken; raises as `Cursor` does."""
        self._cursor.load_state_dict(state)


def tokenize(text: str, tokenizer: Any, max_tokens: int) -> list[int]:
    """Token ids of a text, at most `max_tokens`, with an end-of-text token where nothing was cut off."""
    ids: list[int] = tokenizer(text, return_attention_mask=False, return_token_type_ids=False)["input_ids"]
    end = tokenizer.eos_token_id
    if end is not None and ids[-1:] != [end]:
        ids = [*ids, int(end)]
    return ids[:max_tokens]


@dataclass(frozen=True, slots=True)
class TextObjective:
    """coef * mean -logprob per token over the next batch of texts; adds its gradients to those of an optimizer step."""

    source: TextSource
    logprobs: Callable[[Sequences], Tensor]
    """Of the tokens of texts [B, L] under the policy at temperature 1, with a gradient."""
    coef: float
    batch_size: int
    microbatch_size: int
    device: torch.device
    ranks: Ranks = ALONE
    """Each does its share of the texts."""

    def accumulate(self, backward: Callable[[Tensor], None]) -> float:
        """Add the gradients; returns the loss without coef, nats per token.

        Raises:
            NonFinite: the loss is not finite; gradients of a part of it may have been added.
        """
        texts = self.source.draw(self.batch_size).to(self.device)
        tokens, total = texts.response_mask.sum(), 0.0
        own = self.ranks.split(torch.arange(len(texts), device=self.device))
        for rows in own.split(self.microbatch_size) if len(own) else ():
            part = texts.rows(rows)
            loss = -masked_sum(self.logprobs(part), part.response_mask) / tokens
            total += float(loss.detach())
            if not math.isfinite(total):
                break  # all ranks must hear of it: raised below
            backward(self.coef * loss)
        total = math.fsum(self.ranks.exchange(total))
        if not math.isfinite(total):
            raise NonFinite("the ptx loss is not finite")
        return total
