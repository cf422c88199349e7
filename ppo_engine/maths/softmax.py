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

_BLOCK_LOGITS = 512 * 1024
"""Logits worked on at once, 2 MiB in fp32: what is read several times then comes from a cache of the processor."""


class _Picked(Function):
    """logits [N, V], targets [N], temperature -> logprobs [N], entropy [N]; only the first has a gradient."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        keep = ctx.needs_input_grad[0]
        logprobs = torch.empty(len(logits), device=logits.device)
        entropy = torch.empty_like(logprobs)
        probabilities = torch.empty_like(logits) if keep else None
        rows = _rows_per_block(logits)
        for start in range(0, len(logits), rows):
            part = slice(start, start + rows)
            scaled = logits[part].float()
            if temperature != 1.0:
                scaled = scaled / temperature
            normaliser = scaled.logsumexp(dim=1)
            logprobs[part] = scaled.gather(1, targets[part].unsqueeze(1)).squeeze(1) - normaliser
            share = (scaled - normaliser.unsqueeze(1)).exp_()
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
    def backward(ctx: Any, gradient: Tensor, _entropy: Tensor) -> tuple[Tensor, None, None]:
        """d logprob / d logit = (1[target] - p) / temperature."""
        probabilities, targets = ctx.saved_tensors
        scale = (gradient / ctx.temperature).unsqueeze(1)
        found = probabilities * -scale.to(probabilities.dtype)
        found.scatter_add_(1, targets.unsqueeze(1), scale.to(found.dtype))
        return found, None, None


def picked_logprobs(logits: Tensor, targets: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """log softmax(z)[target] and entropy logsumexp(z) - sum softmax(z) z, with z = logits / temperature, in fp32.

    Args:
        logits: [N, V], of any precision; the gradient has the same.
        targets: [N].

    Returns:
        Two [N], nats. The entropy has no gradient.
    """
    found: tuple[Tensor, Tensor] = _Picked.apply(logits, targets, temperature)  # type: ignore[no-untyped-call]
    return found


def _rows_per_block(logits: Tensor) -> int:
    """On a GPU, where one kernel is faster than many, everything at once."""
    return max(1, len(logits) if logits.is_cuda else _BLOCK_LOGITS // logits.shape[1])
