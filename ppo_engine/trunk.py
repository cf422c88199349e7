"""The trunk of a language model: tokens -> last hidden states.

Legend: B sequences, P prompt tokens, T response tokens, L = P + T - 1 tokens that are read, H hidden size.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from ppo_engine.batch import Sequences


class Trunk:
    """Forward passes of a transformer without its head. Holds no parameters of its own: they are `model`'s."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._takes_positions = "position_ids" in inspect.signature(model.forward).parameters

    def __call__(self, input_ids: Tensor, attention_mask: Tensor, **options: Any) -> Tensor:
        """Last hidden states [B, L, H]; positions are counted over real tokens, so padding shifts nothing."""
        if self._takes_positions:
            positions = (attention_mask.long().cumsum(dim=1) - 1).clamp(min=0)
            options["position_ids"] = positions[:, -input_ids.shape[1] :]
        hidden: Tensor = self.model(
            input_ids=input_ids, attention_mask=attention_mask.long(), return_dict=True, **options
        )[0]
        return hidden

    def response_hidden(self, sequences: Sequences) -> Tensor:
        """Hidden states [B, T, H] of the states in which each response token was chosen."""
        return self(*read_tokens(sequences), use_cache=False)[:, sequences.prompt_ids.shape[1] - 1 :]


def read_tokens(sequences: Sequences) -> tuple[Tensor, Tensor]:
    """Token ids and mask [B, L]: all but the last response token, which is chosen and never read."""
    ids = torch.cat([sequences.prompt_ids, sequences.response_ids[:, :-1]], dim=1)
    mask = torch.cat([sequences.prompt_mask, sequences.response_present[:, :-1]], dim=1)
    return ids, mask
