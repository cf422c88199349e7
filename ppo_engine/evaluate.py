"""The forward passes before an update: what policy, reference and critic say of sampled responses.

Legend: B sequences, T response tokens. Nothing here has a gradient.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ppo_engine.batch import Sequences
from ppo_engine.config import KLPenalty
from ppo_engine.kl import per_token_kl
from ppo_engine.logprobs import Distribution, full_kl
from ppo_engine.models import Policy, response_positions
from ppo_engine.overlay import Reference

ROWS_PER_MICROBATCH_ROW = 4
"""A pass without gradients keeps no activations: so many more rows cost no more memory than a microbatch with them."""


class Evaluation(NamedTuple):
    """Tensors [B, T], 0 where not trained on; `ref_logprobs` is None without a reference."""

    logprobs: Tensor
    values: Tensor
    ref_logprobs: Tensor | None
    kl: Tensor
    sequences: Sequences
    """With what frozen layers made of them."""


@torch.no_grad()
def evaluate(
    policy: Policy,
    reference: Reference | None,
    sequences: Sequences,
    distribution: Distribution,
    penalty: KLPenalty,
    *,
    microbatch_size: int,
) -> Evaluation:
    """Log-probabilities under policy and reference, values, and KL per token."""
    shape, device = sequences.response_mask.shape, sequences.response_mask.device
    logprobs, values, ref_logprobs, kl = (torch.zeros(shape, device=device) for _ in range(4))
    rows_per_pass = ROWS_PER_MICROBATCH_ROW * microbatch_size
    sequences = policy.language.trunk.share(sequences, rows_per_pass)
    for rows in torch.arange(len(sequences), device=device).split(rows_per_pass):
        part = sequences.rows(rows)
        columns = slice(0, part.response_mask.shape[1])
        outputs = policy(part, distribution)
        logprobs[rows, columns], values[rows, columns] = outputs.logprobs.float(), outputs.values
        if reference is None:
            continue
        ref, ref_hidden = reference(part, distribution)
        ref_logprobs[rows, columns] = ref.float()
        if penalty is KLPenalty.FULL:
            kl[rows, columns] = _full_kl(policy, reference, part, ref_hidden, distribution)
        else:
            kl[rows, columns] = per_token_kl(outputs.logprobs.float(), ref.float(), penalty)
    return Evaluation(logprobs, values, None if reference is None else ref_logprobs, kl, sequences)


def _full_kl(
    policy: Policy, reference: Reference, part: Sequences, ref_hidden: Tensor, distribution: Distribution
) -> Tensor:
    mask, language = part.response_mask, policy.language
    hidden = language.trunk.response_hidden(part)[mask]
    positions = response_positions(mask)[mask]
    kl = full_kl(hidden, ref_hidden[mask], positions, language.head, reference.head, distribution)
    return torch.zeros(mask.shape, device=mask.device).masked_scatter(mask, kl.float())
