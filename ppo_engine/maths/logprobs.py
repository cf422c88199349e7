"""From hidden states to log-probabilities, entropy and KL, without ever holding all logits.

Legend: N real response tokens (padding is left out before), H hidden size, V vocabulary. What is held of [N, V] is
bounded, whatever N and V are: many logits are made chunk by chunk, and again in the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ppo_engine.maths.softmax import picked_logprobs, without

Head = Callable[[Tensor], Tensor]
"""Hidden states [n, H] -> logits [n, V]."""

CHUNK_LOGITS = 16 * 1024 * 1024
"""Logits in one chunk: 64 MiB in fp32."""

KEPT_LOGITS = 2 * CHUNK_LOGITS
"""Up to so many, their probabilities are kept for the backward pass; more are computed again, chunk by chunk."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """How logits become the distribution that is sampled from, and the same one that is scored.

    `eos_ids` cannot be drawn before `min_new_tokens` tokens are there.
    """

    temperature: float = 1.0
    min_new_tokens: int = 1
    eos_ids: tuple[int, ...] = ()

    @property
    def forbids_end(self) -> bool:
        """Whether some positions cannot end the response."""
        return self.min_new_tokens > 1 and bool(self.eos_ids)

    def shape(self, logits: Tensor, positions: Tensor) -> Tensor:
        """Logits [n, V] of response positions [n] (0-based) -> fp32 logits of the sampled distribution [n, V]."""
        logits = logits.float()
        if self.temperature != 1.0:
            logits = logits / self.temperature
        impossible = self.impossible(positions)
        return logits if impossible is None else without(logits, *impossible)

    def impossible(self, positions: Tensor) -> tuple[Tensor, Tensor] | None:
        """Which response positions [n] cannot end the response [n] bool, and the tokens that would; None if all can."""
        if not self.forbids_end:
            return None
        return positions < self.min_new_tokens - 1, torch.tensor(self.eos_ids, device=positions.device)


def token_logprobs(
    hidden: Tensor, targets: Tensor, positions: Tensor, head: Head, distribution: Distribution, *, entropy_grad: bool
) -> tuple[Tensor, Tensor]:
    """Log-probability of each target token and entropy of its distribution: [N, H], [N], [N] -> [N], [N], nats.

    Entropy = logsumexp(z) - sum softmax(z) z over the whole vocabulary. It carries a gradient only if `entropy_grad`.
    """

    def one(part: Tensor, target: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        if entropy_grad and torch.is_grad_enabled():
            return _logprobs_and_entropy(distribution.shape(head(part), position), target)
        return picked_logprobs(head(part), target, distribution.temperature, distribution.impossible(position))

    vocabulary = vocabulary_of(head)
    again = torch.is_grad_enabled() and len(hidden) * vocabulary > KEPT_LOGITS
    results = []
    for rows in _chunks(hidden, vocabulary, CHUNK_LOGITS if again or not torch.is_grad_enabled() else KEPT_LOGITS):
        inputs = hidden[rows], targets[rows], positions[rows]
        results.append(
            checkpoint(one, *inputs, use_reentrant=False, preserve_rng_state=False) if again else one(*inputs)
        )
    logprobs, entropies = zip(*results, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


def _logprobs_and_entropy(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The same two numbers, both with a gradient."""
    normaliser = logits.logsumexp(dim=-1)
    taken = logits.gather(1, targets.unsqueeze(1)).squeeze(1) - normaliser
    probabilities = (logits - normaliser.unsqueeze(1)).exp()
    return taken, normaliser - (probabilities * logits).sum(dim=-1)


def full_kl(
    hidden: Tensor, ref_hidden: Tensor, positions: Tensor, head: Head, ref_head: Head, distribution: Distribution
) -> Tensor:
    """KL(policy || reference) = sum_V p (log p - log q) at each token: [N, H], [N, H], [N] -> [N], nats.

    The gradient is the policy's alone; the reference is a constant.
    """

    def one(part: Tensor, ref_part: Tensor, position: Tensor) -> Tensor:
        log_p = distribution.shape(head(part), position).log_softmax(dim=-1)
        with torch.no_grad():
            log_q = distribution.shape(ref_head(ref_part), position).log_softmax(dim=-1)
        return (log_p.exp() * (log_p - log_q)).sum(dim=-1)

    parts = []
    for rows in _chunks(hidden, vocabulary_of(head), CHUNK_LOGITS):
        inputs = hidden[rows], ref_hidden[rows], positions[rows]
        grad = torch.is_grad_enabled()
        parts.append(checkpoint(one, *inputs, use_reentrant=False, preserve_rng_state=False) if grad else one(*inputs))
    return torch.cat(parts)


def vocabulary_of(head: Head) -> int:
    """Number of logits per hidden state."""
    return int(getattr(head, "vocabulary", 65_536))


def _chunks(hidden: Tensor, vocabulary: int, logits: int) -> Iterator[slice]:
    size = max(1, logits // vocabulary)
    for start in range(0, max(len(hidden), 1), size):
        yield slice(start, start + size)
