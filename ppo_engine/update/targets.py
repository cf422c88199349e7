"""From scores to what the optimiser aims at, as the spec says. Legend: B sequences, T response tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ppo_engine.batch import Advantages, RolloutBatch, Sequences
from ppo_engine.config import PPOConfig, TrainConfig
from ppo_engine.errors import NonFinite, NothingToTrainOn
from ppo_engine.maths.advantages import gae, length_adaptive_lambda
from ppo_engine.maths.masked import keep, whiten
from ppo_engine.maths.shaping import RunningMoments, overlong_penalty, process_scores


def trainable(sequences: Sequences, truncated: Sequence[bool], config: PPOConfig) -> Sequences:
    """The sequences with the mask that training uses: with `mask_truncated` without responses that were cut off.

    Raises:
        NothingToTrainOn: no token is left.
    """
    if config.mask_truncated:
        sequences = without_rows(sequences, truncated)
    if not bool(sequences.response_mask.any()):
        raise NothingToTrainOn("no response of this step has a token to train on")
    return sequences


def without_rows(sequences: Sequences, dropped: Sequence[bool]) -> Sequences:
    """The sequences with nothing to train on in the dropped rows."""
    kept = ~torch.as_tensor(dropped, dtype=torch.bool, device=sequences.response_mask.device)
    return replace(sequences, response_mask=sequences.response_mask & kept.unsqueeze(1))


def token_matrix(rows: Sequence[Sequence[float] | None], mask: Tensor) -> Tensor:
    """One number per response token -> [B, T] as `mask` is, 0 past the end of a row and in a row that is None."""
    matrix = torch.zeros(mask.shape, device=mask.device)
    for target, row in zip(matrix, rows, strict=True):
        if row is not None:
            target[: len(row)] = torch.tensor(row, device=mask.device)
    return matrix


def shape_scores(
    raw: Tensor, sequences: Sequences, truncated: Sequence[bool], moments: RunningMoments, config: TrainConfig
) -> Tensor:
    """Scale and clip, then take the penalties of length off: [B] -> [B], 0 for a response that is not trained on.

    Raises:
        NonFinite: a score that is trained on is not finite; the moments are as they were.
    """
    ppo, trained = config.ppo, sequences.response_mask.any(dim=1)
    if not bool(torch.isfinite(raw[trained]).all()):
        raise NonFinite("a score is not finite")
    scores = torch.zeros_like(raw)
    scores[trained] = process_scores(raw[trained], moments, ppo.score_scaling, ppo.score_clip)
    if ppo.missing_eos_penalty is not None:
        cut = torch.as_tensor(truncated, dtype=torch.bool, device=raw.device)
        scores = scores - ppo.missing_eos_penalty * cut
    if ppo.overlong_buffer_tokens is not None:
        scores = scores - overlong_penalty(
            sequences.response_present.sum(dim=1),
            max_tokens=config.generation.max_new_tokens,
            buffer_tokens=ppo.overlong_buffer_tokens,
            largest=ppo.overlong_penalty,
        )
    return keep(scores, trained)


def advantages(batch: RolloutBatch, config: PPOConfig) -> Advantages:
    """Advantages and returns of a rollout batch.

    The critic's returns keep `gae_lambda` when the advantages' lambda adapts to length, unless they have their own.

    Raises:
        NonFinite: a reward or value was not finite.
    """
    rewards = whiten(batch.rewards, batch.mask, shift_mean=False) if config.whiten_rewards else batch.rewards
    alpha, value_lambda = config.length_adaptive_lambda, config.value_gae_lambda
    lam = config.gae_lambda if alpha is None else length_adaptive_lambda(batch.mask, alpha)
    found, returns = gae(rewards, batch.old_values, batch.mask, gamma=config.gamma, lam=lam)
    if alpha is not None or value_lambda is not None:
        own = config.gae_lambda if value_lambda is None else value_lambda
        _, returns = gae(rewards, batch.old_values, batch.mask, gamma=config.gamma, lam=own)
    if config.whiten_advantages:
        found = whiten(found, batch.mask)
    if not bool(torch.isfinite(found).all()):  # where all are, so are rewards, values and returns
        raise NonFinite("an advantage is not finite: a reward, a logprob or a value was not")
    return Advantages(advantages=found, returns=returns)
