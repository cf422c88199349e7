"""The forward passes before an update: what policy, reference and critic say of sampled responses.

Legend: B sequences, T response tokens. Nothing here has a gradient.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from ppo_engine.batch import Sequences
from ppo_engine.config import KLPenalty
from ppo_engine.maths.kl import per_token_kl
from ppo_engine.maths.logprobs import Distribution
from ppo_engine.models.overlay import Reference
from ppo_engine.models.policy import OtherDistribution, Policy
from ppo_engine.ranks import ALONE, Ranks

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
    ref_hidden: Tensor | None = None
    """[B, T, H] the reference's hidden states, for the full KL; None for other penalties."""


@torch.no_grad()
def evaluate(
    policy: Policy,
    reference: Reference | None,
    sequences: Sequences,
    distribution: Distribution,
    penalty: KLPenalty,
    *,
    microbatch_size: int,
    ranks: Ranks = ALONE,
) -> Evaluation:
    """Log-probabilities under policy and reference, values, and KL per token; each rank computes its share of them."""
    shape, device = sequences.response_mask.shape, sequences.response_mask.device
    logprobs, values, ref_logprobs, kl = (torch.zeros(shape, device=device) for _ in range(4))
    ref_hidden: Tensor | None = None
    rows_per_pass = ROWS_PER_MICROBATCH_ROW * microbatch_size
    share = ranks.share(len(sequences))
    passes = share.index(device).split(rows_per_pass)
    sequences = policy.language.trunk.share(sequences, passes)
    for rows in passes:
        part = sequences.rows(rows)
        columns = slice(0, part.response_mask.shape[1])
        if reference is None:
            outputs = policy(part, distribution)
            logprobs[rows, columns], values[rows, columns] = outputs.logprobs.float(), outputs.values
            continue
        ref, ref_states = reference(part, distribution)
        against = OtherDistribution(ref_states, reference.head) if penalty is KLPenalty.FULL else None
        outputs = policy(part, distribution, against=against)
        logprobs[rows, columns], values[rows, columns] = outputs.logprobs.float(), outputs.values
        ref_logprobs[rows, columns] = ref.float()
        if outputs.kl is None:
            kl[rows, columns] = per_token_kl(outputs.logprobs.float(), ref.float(), penalty)
            continue
        kl[rows, columns] = outputs.kl.float()
        if ref_hidden is None:
            ref_hidden = ref_states.new_zeros((*shape, ref_states.shape[-1]))
        ref_hidden[rows, columns] = ref_states
    logprobs, values, ref_logprobs, kl = (share.whole(found) for found in (logprobs, values, ref_logprobs, kl))
    return Evaluation(
        logprobs,
        values,
        None if reference is None else ref_logprobs,
        kl,
        sequences if sequences.frozen is None else replace(sequences, frozen=share.whole(sequences.frozen)),
        None if ref_hidden is None else share.whole(ref_hidden),
    )
