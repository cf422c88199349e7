"""The trunk of a language model: tokens -> last hidden states.

Legend: B sequences, P prompt tokens, T response tokens, L = P + T - 1 tokens that are read, H hidden size.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ppo_engine.batch import Sequences
from ppo_engine.models.attention import fast_attention
from ppo_engine.models.fusion import fuse
from ppo_engine.models.layers import DecoderLayers


class Trunk:
    """Forward passes of a transformer without its head. Holds no parameters of its own: they are `model`'s."""

    def __init__(self, model: nn.Module) -> None:
        fuse(model)
        self.model = model
        self._takes_positions = "position_ids" in inspect.signature(model.forward).parameters
        self._layers: DecoderLayers | None = None

    def __call__(self, input_ids: Tensor, attention_mask: Tensor, **options: Any) -> Tensor:
        """Last hidden states [B, L, H]; positions are counted over real tokens, so padding shifts nothing."""
        if self._takes_positions:
            positions = (attention_mask.long().cumsum(dim=1) - 1).clamp(min=0)
            options["position_ids"] = positions[:, -input_ids.shape[1] :]
        hidden: Tensor = self.model(
            input_ids=input_ids, attention_mask=attention_mask.long(), return_dict=True, **options
        )[0]
        return hidden

    @property
    def layers(self) -> DecoderLayers:
        """Its decoder layers, taken over at the first use.

        Raises:
            InvalidConfig: the architecture has none that can be.
        """
        if self._layers is None:
            ids = torch.zeros((1, 2), dtype=torch.long, device=next(self.model.parameters()).device)
            self._layers = DecoderLayers(self.model, partial(self, ids, torch.ones_like(ids), use_cache=False))
        return self._layers

    def checkpoint_layers(self, wanted: bool) -> None:
        """Keep only the inputs of layers for the backward pass. Transformers' own switch does nothing in eval mode.

        Raises:
            InvalidConfig: the architecture has no layers that can be taken over.
        """
        if wanted:
            self.layers.checkpointing = True

    def response_hidden(self, sequences: Sequences) -> Tensor:
        """Hidden states [B, T, H] of the states in which each response token was chosen."""
        shared = sequences.frozen if self._has_frozen_layers() else None
        with nullcontext() if shared is None else self.layers.given(shared):
            hidden = self._read(*read_tokens(sequences))
        return hidden[:, sequences.prompt_ids.shape[1] - 1 :]

    @torch.no_grad()
    def share(self, sequences: Sequences, passes: Iterable[Tensor]) -> Sequences:
        """The same sequences with what the frozen layers make of them, for every forward pass to come.

        Without frozen layers, just the same.

        Args:
            passes: rows that are computed together; of rows in none of them, the result is 0.
        """
        if not self._has_frozen_layers():
            return sequences
        shared: Tensor | None = None
        for index in passes:
            part = sequences.rows(index)
            ids, mask = read_tokens(part)
            hidden = self.layers.frozen(partial(self._read, ids, mask))
            if shared is None:
                shared = hidden.new_zeros((len(sequences), read_tokens(sequences)[0].shape[1], hidden.shape[2]))
            start = sequences.prompt_ids.shape[1] - part.prompt_ids.shape[1]
            shared[index, start : start + hidden.shape[1]] = hidden
        return replace(sequences, frozen=shared)

    def _read(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Last hidden states of whole sequences, without a cache.

        A checkpointed layer runs again in the backward pass, when the choice of a kernel is over: there is none then.
        """
        checkpointing = self._layers is not None and self._layers.checkpointing
        with nullcontext() if checkpointing else fast_attention(self.model, ids):
            return self(ids, mask, use_cache=False)

    def _has_frozen_layers(self) -> bool:
        return self._layers is not None and self._layers.first > 0


def read_tokens(sequences: Sequences) -> tuple[Tensor, Tensor]:
    """Token ids and mask [B, L]: all but the last response token, which is chosen and never read."""
    ids = torch.cat([sequences.prompt_ids, sequences.response_ids[:, :-1]], dim=1)
    mask = torch.cat([sequences.prompt_mask, sequences.response_present[:, :-1]], dim=1)
    return ids, mask
