"""Keys and values of the tokens read so far. Legend: A rows, H heads, L tokens, D numbers per head."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer


class RoomyLayer(DynamicLayer):
    """Has room for all tokens to come, where transformers' own copies everything for every token."""

    def __init__(self, tokens: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tokens = tokens
        self._rooms: list[Tensor] = []

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        *args: Any,  # noqa: ARG002 - some models pass more
        **kwargs: Any,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor]:
        """Add the keys and values [A, H, l, D] of new tokens; returns those of all."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        if not self._rooms:
            self._rooms = [_room(states, self._tokens) for states in (key_states, value_states)]
        for room, states in zip(self._rooms, (key_states, value_states), strict=True):
            room[:, :, start:end] = states
        self.keys, self.values = (room[:, :, :end] for room in self._rooms)
        return self.keys, self.values

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keep the rows of `beam_idx`."""
        if not self._rooms:
            return
        end = self.get_seq_length()
        kept = []
        for room in self._rooms:
            smaller = room.new_empty((len(beam_idx), *room.shape[1:]))
            smaller[:, :, :end] = room[beam_idx, :, :end]
            kept.append(smaller)
        self._rooms = kept
        self.keys, self.values = (room[:, :, :end] for room in self._rooms)


def make_cache(model: PreTrainedModel, tokens: int) -> DynamicCache:
    """A cache for that many tokens; layers with a window or a state keep transformers' own."""
    cache = DynamicCache(config=model.config)
    cache.layers = [RoomyLayer(tokens) if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def _room(states: Tensor, tokens: int) -> Tensor:
    rows, heads, new, width = states.shape
    return torch.empty((rows, heads, max(tokens, new), width), dtype=states.dtype, device=states.device)
