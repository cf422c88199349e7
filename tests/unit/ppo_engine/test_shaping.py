"""Lambdas, penalties of length, dense rewards and dropped responses, against short loops over floats."""

from __future__ import annotations

import math

import pytest
import torch

from ppo_engine.config import ScoreScaling
from ppo_engine.maths.advantages import explained_variance, gae, length_adaptive_lambda
from ppo_engine.maths.shaping import RunningMoments, overlong_penalty, per_token_rewards, process_scores
from tests.support.tolerances import assert_close

NAN = math.nan
MASK = torch.tensor([[1, 1, 1, 1, 0], [1, 0, 1, 0, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]]).bool()


def test_lambda_grows_with_the_length_of_the_response() -> None:
    lengths = [4, 2, 1, 5]  # a response without a token has no lambda: any will do
    wanted = [min(max(1 - 1 / (0.4 * n), 0.0), 1.0) for n in lengths]
    assert_close(length_adaptive_lambda(MASK, 0.4), wanted)
    assert wanted[1] == 0.0  # clamped: 1 - 1/0.8 is negative


def test_each_sequence_has_its_own_lambda() -> None:
    generator = torch.Generator().manual_seed(0)
    rewards, values = torch.randn(2, 4, 5, generator=generator)
    together, _ = gae(rewards, values, MASK, gamma=0.9, lam=torch.tensor([0.0, 0.3, 0.6, 1.0]))
    for row, lam in enumerate([0.0, 0.3, 0.6, 1.0]):
        alone, _ = gae(rewards[row : row + 1], values[row : row + 1], MASK[row : row + 1], gamma=0.9, lam=lam)
        assert torch.equal(together[row], alone[0])


@pytest.mark.parametrize(
    ("tokens", "penalty"), [(1, 0.0), (80, 0.0), (85, 0.5), (90, 1.0), (95, 1.5), (100, 2.0), (120, 2.0)]
)
def test_the_overlong_penalty_grows_over_the_buffer(tokens: int, penalty: float) -> None:
    """DAPO, eq. 13 with L_max 100, L_cache 20 and a largest penalty of 2."""
    found = overlong_penalty(torch.tensor([tokens]), max_tokens=100, buffer_tokens=20, largest=2.0)
    assert found.tolist() == pytest.approx([penalty])


def loop_rewards(score: float, kl: list[float], kept: list[bool], beta: float, dense: list[float]) -> list[float]:
    rewards = [-beta * k + d if m else 0.0 for k, m, d in zip(kl, kept, dense, strict=True)]
    real = [t for t, m in enumerate(kept) if m]
    if real:
        rewards[real[-1]] += score
    return rewards


def test_rewards_per_token() -> None:
    generator = torch.Generator().manual_seed(1)
    kl, dense = torch.randn(2, 4, 5, generator=generator)
    scores = torch.tensor([1.0, -2.0, NAN, 0.5])
    found = per_token_rewards(scores, kl.masked_fill(~MASK, NAN), MASK, 0.3, dense.masked_fill(~MASK, NAN))
    for row in range(4):
        wanted = loop_rewards(float(scores[row]), kl[row].tolist(), MASK[row].tolist(), 0.3, dense[row].tolist())
        assert_close(found[row], wanted)


def test_no_scores_leave_the_moments_alone() -> None:
    moments = RunningMoments(1.0, 4.0, 8.0)
    assert process_scores(torch.zeros(0), moments, ScoreScaling.NORMALISE, None).tolist() == []
    assert moments == RunningMoments(1.0, 4.0, 8.0)


def test_explained_variance_ignores_what_is_masked() -> None:
    returns = torch.tensor([[1.0, 2.0, 3.0, NAN]])
    values = torch.tensor([[1.5, 1.5, 3.0, NAN]])
    mask = torch.tensor([[True, True, True, False]])
    residual, mean = [-0.5, 0.5, 0.0], 0.0
    wanted = 1 - sum((r - mean) ** 2 for r in residual) / (1 + 0 + 1)
    assert explained_variance(values, returns, mask) == pytest.approx(wanted)
    assert explained_variance(values, torch.ones(1, 4), mask) is None
