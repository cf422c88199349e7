"""The losses and penalties per token against the definitions, written out over floats."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from ppo_engine.config import KLPenalty
from ppo_engine.maths.kl import per_token_kl
from ppo_engine.maths.losses import policy_loss, value_loss
from tests.support.tolerances import MATH, assert_close

CHANGES = (-2.0, -0.4, -0.1, 0.0, 0.15, 0.3, 2.0)
ADVANTAGES = (-2.0, -0.5, 0.0, 0.5, 2.0)


def objective(ratio: float, advantage: float, low: float, high: float, dual: float | None) -> float:
    """What is maximised, as the papers write it."""
    clipped = min(max(ratio, 1 - low), 1 + high)
    smaller = min(ratio * advantage, clipped * advantage)
    return max(smaller, dual * advantage) if dual is not None and advantage < 0 else smaller


@pytest.mark.parametrize(
    ("low", "high", "dual"), [(0.2, None, None), (0.2, 0.28, None), (0.2, None, 3.0), (0.1, 0.5, 1.5)]
)
def test_the_policy_loss_is_minus_the_papers_objective(low: float, high: float | None, dual: float | None) -> None:
    pairs = list(itertools.product(CHANGES, ADVANTAGES))
    new = torch.tensor([[change for change, _ in pairs]])
    found = policy_loss(
        new,
        torch.zeros_like(new),
        torch.tensor([[advantage for _, advantage in pairs]]),
        clip_range=low,
        clip_range_high=high,
        dual_clip=dual,
    )
    wanted = [-objective(math.exp(c), a, low, low if high is None else high, dual) for c, a in pairs]
    assert_close(found.loss, [wanted])
    assert_close(found.ratio, [[math.exp(change) for change, _ in pairs]])


def test_a_bad_token_that_became_likely_pulls_no_further_than_the_dual_clip() -> None:
    new = torch.tensor([[0.5, 3.0]], requires_grad=True)
    policy_loss(
        new, torch.zeros(1, 2), torch.tensor([[-1.0, -1.0]]), clip_range=0.2, dual_clip=3.0
    ).loss.sum().backward()
    assert new.grad is not None
    assert_close(new.grad, [[math.exp(0.5), 0.0]])


def test_clipfrac_means_the_same_with_and_without_dual_clip() -> None:
    new = torch.tensor([CHANGES])
    clipped = [
        policy_loss(new, torch.zeros_like(new), -torch.ones_like(new), clip_range=0.2, dual_clip=dual).clipped
        for dual in (None, 1.1)
    ]
    assert torch.equal(*clipped)
    assert clipped[0].tolist() == [[True, True, False, False, False, False, False]]


def huber(error: float, delta: float | None) -> float:
    if delta is None or abs(error) <= delta:
        return 0.5 * error * error
    return delta * (abs(error) - 0.5 * delta)


@pytest.mark.parametrize("delta", [None, 0.5, 10.0])
@pytest.mark.parametrize("clip", [None, 0.2])
def test_the_value_loss_is_the_larger_of_both_errors(clip: float | None, delta: float | None) -> None:
    cases = list(itertools.product((-1.5, -0.3, 0.1, 2.0), (-0.25, 0.0, 0.4), (-1.0, 0.1, 1.7)))
    new, old, returns = torch.tensor(cases).T.unsqueeze(1)
    new.requires_grad_()
    found = value_loss(new, old, returns, clip_range=clip, huber_delta=delta)
    plain = [v - r for v, _, r in cases]
    held = [min(max(v, o - clip), o + clip) - r for v, o, r in cases] if clip is not None else plain
    wanted = [max(huber(a, delta), huber(b, delta)) for a, b in zip(plain, held, strict=True)]
    assert_close(found.loss.detach(), [wanted])
    assert_close(found.error, [[error * error for error in plain]])
    assert found.clipped.tolist() == [[abs(b) > abs(a) + 1e-9 for a, b in zip(plain, held, strict=True)]]
    found.loss.sum().backward()
    assert new.grad is not None
    assert bool(torch.isfinite(new.grad).all())


def test_huber_is_as_torch_has_it() -> None:
    values = torch.linspace(-3, 3, 25).unsqueeze(0)
    ours = value_loss(values, values, torch.zeros_like(values), clip_range=None, huber_delta=0.7).loss
    theirs = torch.nn.functional.huber_loss(values, torch.zeros_like(values), reduction="none", delta=0.7)
    assert_close(ours, theirs)


def test_a_value_on_its_return_has_no_gradient_under_huber() -> None:
    values = torch.zeros(1, 2, requires_grad=True)
    value_loss(values, values.detach(), torch.zeros(1, 2), clip_range=0.2, huber_delta=1.0).loss.sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [[0.0, 0.0]]


def test_an_unclipped_value_may_run_away_from_its_old_one() -> None:
    new = torch.tensor([[5.0]], requires_grad=True)
    value_loss(new, torch.tensor([[0.0]]), torch.tensor([[9.0]]), clip_range=None).loss.sum().backward()
    assert new.grad is not None
    assert new.grad.tolist() == [[-4.0]]


@pytest.mark.parametrize(
    ("penalty", "formula"),
    [
        (KLPenalty.KL, lambda d: d),
        (KLPenalty.ABS, abs),
        (KLPenalty.MSE, lambda d: 0.5 * d * d),
        (KLPenalty.K3, lambda d: math.exp(-d) + d - 1),
    ],
)
def test_penalties(penalty: KLPenalty, formula: object) -> None:
    differences = [-3.0, -0.2, 0.0, 0.7, 5.0]
    found = per_token_kl(torch.tensor([differences]) - 1.0, -torch.ones(1, 5), penalty)
    assert_close(found, [[formula(d) for d in differences]], MATH * 10)  # type: ignore[operator]


def test_k3_is_kl_on_average_and_never_negative() -> None:
    policy, reference = torch.randn(2, 50, generator=torch.Generator().manual_seed(0)).log_softmax(dim=1)
    k3 = per_token_kl(policy, reference, KLPenalty.K3)
    assert float(k3.min()) >= 0.0
    exact = float((policy.exp() * (policy - reference)).sum())
    assert float((policy.exp() * k3).sum()) == pytest.approx(exact, rel=1e-5)


def test_k3_stays_finite_where_the_reference_is_sure_and_the_policy_is_not() -> None:
    logprobs = torch.tensor([[-500.0]], requires_grad=True)
    k3 = per_token_kl(logprobs, torch.zeros(1, 1), KLPenalty.K3)
    k3.sum().backward()
    assert math.isfinite(float(k3.detach()))
    assert logprobs.grad is not None
    assert bool(torch.isfinite(logprobs.grad).all())
