"""The log-probability of one token and the entropy of its distribution, with a gradient that costs one pass.

Legend: N tokens, V vocabulary. Autograd's own way through `log_softmax` holds several [N, V] tensors in fp32 and reads
each of them several times; here one is kept, the probabilities in the logits' own precision.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

IMPOSSIBLE = -1e9
"""Logit of a token that cannot be drawn: its share is exactly 0, and 0 * IMPOSSIBLE is 0, where -inf gives NaN."""
_BLOCK_LOGITS = 512 * 1024
"""Logits worked on at once, 2 MiB in fp32: what is read several times then comes from a cache of the processor."""


class _Picked(Function):
    """logits [N, V], targets [N], temperature, ... -> logprobs [N], entropy [N]; only the first has a gradient."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, temperature: float, impossible: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, Tensor]:
        keep = ctx.needs_input_grad[0]
        logprobs = torch.empty(len(logits), device=logits.device)
        entropy = torch.empty_like(logprobs)
        probabilities = torch.empty_like(logits) if keep else None
        rows = min(len(logits), _rows_per_block(logits))
        both = torch.empty((2, rows, logits.shape[1]), device=logits.device)  # every block's: fresh memory is slow
        for start in range(0, len(logits), rows):
            part = slice(start, start + rows)
            scaled, share = both[:, : len(logits[part])]
            scaled.copy_(logits[part])
            if temperature != 1.0:
                scaled /= temperature
            if impossible is not None:
                scaled = without(scaled, impossible[0][part], impossible[1])
            peak = scaled.amax(dim=1, keepdim=True)
            torch.sub(scaled, peak, out=share).exp_()
            total = share.sum(dim=1, keepdim=True)
            share /= total
            normaliser = (peak + total.log()).squeeze(1)
            logprobs[part] = scaled.gather(1, targets[part].unsqueeze(1)).squeeze(1) - normaliser
            entropy[part] = normaliser - torch.linalg.vecdot(share, scaled)
            if probabilities is not None:
                probabilities[part] = share
        if probabilities is not None:
            ctx.save_for_backward(probabilities, targets)
        ctx.temperature = temperature
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, gradient: Tensor, _entropy: Tensor) -> tuple[Tensor, None, None, None]:
        """d logprob / d logit = (1[target] - p) / temperature."""
        probabilities, targets = ctx.saved_tensors
        scale = (gradient / ctx.temperature).unsqueeze(1)
        found = probabilities * -scale.to(probabilities.dtype)
        rows = torch.arange(len(found), device=found.device)
        found[rows, targets] += scale.squeeze(1).to(found.dtype)  # scatter_add_ copies all of a bf16 tensor, twice
        return found, None, None, None


def picked_logprobs(
    logits: Tensor, targets: Tensor, temperature: float = 1.0, impossible: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """log softmax(z)[target] and entropy logsumexp(z) - sum softmax(z) z, with z = logits / temperature, in fp32.

    Args:
        logits: [N, V], of any precision; the gradient has the same.
        targets: [N].
        impossible: rows [N] bool, and ids of tokens that have no probability in those rows; none of them is a target.

    Returns:
        Two [N], nats. The entropy has no gradient.
    """
    found: tuple[Tensor, Tensor] = _Picked.apply(logits, targets, temperature, impossible)  # type: ignore[no-untyped-call]
    return found


def without(logits: Tensor, rows: Tensor, ids: Tensor) -> Tensor:
    """Logits [n, V] in which the tokens of `ids` have no probability in the rows that are True in `rows` [n]."""
    hit = rows.nonzero()
    if not len(hit):
        return logits
    columns = ids.unsqueeze(0).expand(len(hit), -1)
    return logits.index_put((hit.expand_as(columns), columns), logits.new_tensor(IMPOSSIBLE))


def _rows_per_block(logits: Tensor) -> int:
    """On a GPU, where one kernel is faster than many, everything at once."""
    return max(1, len(logits) if logits.is_cuda else _BLOCK_LOGITS // logits.shape[1])
