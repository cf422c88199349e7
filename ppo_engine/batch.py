"""What a step works on: token sequences, and the rollout batch made of them.

Legend: B sequences, P prompt tokens (left-padded), T response tokens (right-padded). Masks: True = real token. Column
P of every row is its first response token, so prompt padding never shifts a position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """Prompts and their responses. Tokens outside `response_mask` may still be read, but are not trained on."""

    prompt_ids: Tensor
    """[B, P] int64"""
    prompt_mask: Tensor
    """[B, P] bool"""
    response_ids: Tensor
    """[B, T] int64"""
    response_present: Tensor
    """[B, T] bool: there is a token here, trained on or not."""
    response_mask: Tensor
    """[B, T] bool: trained on."""
    frozen: Tensor | None = None
    """[B, P + T - 1, H]: what the policy's frozen layers make of the tokens, if they were run already."""

    def __len__(self) -> int:
        return len(self.prompt_ids)

    def rows(self, index: Tensor) -> Sequences:
        """The rows of `index`, without columns that are padding in all of them."""
        prompt_mask, present = self.prompt_mask[index], self.response_present[index]
        start = int(prompt_mask.any(dim=0).int().argmax())
        end = int(present.any(dim=0).sum())
        return Sequences(
            prompt_ids=self.prompt_ids[index, start:],
            prompt_mask=prompt_mask[:, start:],
            response_ids=self.response_ids[index, :end],
            response_present=present[:, :end],
            response_mask=self.response_mask[index, :end],
            frozen=None if self.frozen is None else self.frozen[index, start : self.prompt_ids.shape[1] + end - 1],
        )

    def to(self, device: torch.device) -> Sequences:
        """The same on a device."""
        tensors: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        moved: dict[str, Any] = {name: None if t is None else t.to(device) for name, t in tensors.items()}
        return Sequences(**moved)


def make_sequences(
    prompts: Sequence[Sequence[int]],
    responses: Sequence[Sequence[int]],
    *,
    pad_id: int,
    response_masks: Sequence[Sequence[int]] | None = None,
) -> Sequences:
    """Pad token lists into Sequences; a response mask entry of 0 leaves that token out of training."""
    masks = response_masks or [[1] * len(response) for response in responses]
    prompt_ids, prompt_mask = pad(prompts, pad_id, left=True)
    response_ids, present = pad(responses, pad_id, left=False)
    mask, _ = pad(masks, 0, left=False)
    return Sequences(
        prompt_ids=prompt_ids,
        prompt_mask=prompt_mask,
        response_ids=response_ids,
        response_present=present,
        response_mask=mask.bool() & present,
    )


def pad(rows: Sequence[Sequence[int]], fill: int, *, left: bool) -> tuple[Tensor, Tensor]:
    """Token lists -> ids and mask, both [B, longest]."""
    width = max(1, *(len(row) for row in rows))
    ids = torch.full((len(rows), width), fill, dtype=torch.long)
    mask = torch.zeros((len(rows), width), dtype=torch.bool)
    for i, row in enumerate(rows):
        columns = slice(width - len(row), width) if left else slice(0, len(row))
        ids[i, columns] = torch.tensor(row, dtype=torch.long)
        mask[i, columns] = True
    return ids, mask


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutBatch:
    """All that the optimiser needs of one rollout. Born complete, never amended."""

    sequences: Sequences
    old_logprobs: Tensor
    """[B, T] under the policy that sampled."""
    ref_logprobs: Tensor | None
    """[B, T] under the reference."""
    ref_hidden: Tensor | None = None
    """[B, T, H] the reference's hidden states, where the full KL is in the loss."""
    kl: Tensor
    """[B, T] penalty per token, before the coefficient."""
    old_values: Tensor
    """[B, T]"""
    scores: Tensor
    """[B] what each response earns: its score after scaling, clipping and the penalties of length, plus its dense
    rewards; 0 for one that is not trained on."""
    rewards: Tensor
    """[B, T] scores, dense rewards and the KL penalty where it is in the rewards; 0 where not trained on."""

    @property
    def mask(self) -> Tensor:
        """[B, T] bool: the tokens trained on."""
        return self.sequences.response_mask


@dataclass(frozen=True, slots=True, kw_only=True)
class Advantages:
    """Estimates for one rollout batch."""

    advantages: Tensor
    """[B, T], whitened if so configured."""
    returns: Tensor
    """[B, T]"""
