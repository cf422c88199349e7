"""From hidden states to log-probabilities, entropy and KL, without ever holding all logits.

Legend: N real response tokens (padding is left out before), H hidden size, V vocabulary. Only one chunk of [n, V] fp32
logits exists at a time; with gradients it is computed again in the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Head = Callable[[Tensor], Tensor]
"""Hidden states [n, H] -> logits [n, V]."""

CHUNK_LOGITS = 16 * 1024 * 1024
"""Logits in one chunk: 64 MiB in fp32."""

IMPOSSIBLE = -1e9
"""Logit of a forbidden token: its probability is exactly 0, and 0 * IMPOSSIBLE is 0, where -inf would give NaN."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """How logits become the distribution that is sampled from, and the same one that is scored.

    `eos_ids` cannot be drawn before `min_new_tokens` tokens are there.
    """

    temperature: float = 1.0
    min_new_tokens: int = 1
    eos_ids: tuple[int, ...] = ()

    def shape(self, logits: Tensor, positions: Tensor) -> Tensor:
        """Logits [n, V] of response positions [n] (0-based) -> fp32 logits of the sampled distribution [n, V]."""
        logits = logits.float()
        if self.temperature != 1.0:
            logits = logits / self.temperature
        if self.min_new_tokens > 1 and self.eos_ids:
            early = (positions < self.min_new_tokens - 1).unsqueeze(1)
            eos = torch.zeros(logits.shape[1], dtype=torch.bool, device=logits.device)
            eos[list(self.eos_ids)] = True
            logits = logits.masked_fill(early & eos, IMPOSSIBLE)
        return logits


def token_logprobs(
    hidden: Tensor, targets: Tensor, positions: Tensor, head: Head, distribution: Distribution, *, entropy_grad: bool
) -> tuple[Tensor, Tensor]:
    """Log-probability of each target token and entropy of its distribution: [N, H], [N], [N] -> [N], [N], nats.

    Entropy = logsumexp(z) - sum softmax(z) z over the whole vocabulary. It carries a gradient only if `entropy_grad`.
    """

    def one(part: Tensor, target: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        logits = distribution.shape(head(part), position)
        normaliser = logits.logsumexp(dim=-1)
        taken = logits.gather(1, target.unsqueeze(1)).squeeze(1) - normaliser
        with torch.set_grad_enabled(entropy_grad and torch.is_grad_enabled()):
            probabilities = (logits - normaliser.unsqueeze(1)).exp()
            entropy = normaliser - (probabilities * logits).sum(dim=-1)
        return taken, entropy

    results = []
    for rows in _chunks(hidden, head):
        inputs = hidden[rows], targets[rows], positions[rows]
        grad = torch.is_grad_enabled()
        results.append(
            checkpoint(one, *inputs, use_reentrant=False, preserve_rng_state=False) if grad else one(*inputs)
        )
    logprobs, entropies = zip(*results, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


def full_kl(
    hidden: Tensor, ref_hidden: Tensor, positions: Tensor, head: Head, ref_head: Head, distribution: Distribution
) -> Tensor:
    """KL(policy || reference) = sum_V p (log p - log q) at each token: [N, H], [N, H], [N] -> [N], nats."""
    parts = []
    for rows in _chunks(hidden, head):
        log_p = distribution.shape(head(hidden[rows]), positions[rows]).log_softmax(dim=-1)
        log_q = distribution.shape(ref_head(ref_hidden[rows]), positions[rows]).log_softmax(dim=-1)
        parts.append((log_p.exp() * (log_p - log_q)).sum(dim=-1))
    return torch.cat(parts)


def _chunks(hidden: Tensor, head: Head) -> Iterator[slice]:
    vocabulary = int(getattr(head, "vocabulary", 65_536))
    size = max(1, CHUNK_LOGITS // vocabulary)
    for start in range(0, max(len(hidden), 1), size):
        yield slice(start, start + size)
