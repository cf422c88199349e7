"""Closed forms and short loops over floats for what the recorded numbers do not cover."""

from __future__ import annotations

import math

import pytest
import torch

from ppo_engine.config import OptimizerConfig, Schedule
from ppo_engine.maths.advantages import gae
from ppo_engine.maths.logprobs import Distribution, token_logprobs
from ppo_engine.maths.losses import policy_loss
from ppo_engine.maths.masked import masked_mean, whiten
from ppo_engine.update.optim import learning_rates
from tests.support.tolerances import MATH, assert_close

NAN = math.nan


def loop_gae(rewards: list[float], values: list[float], gamma: float, lam: float) -> list[float]:
    """Definition: A_t = sum_l (gamma lam)^l delta_{t+l}, over real steps only."""
    steps = range(len(rewards))
    after = [*values[1:], 0.0]
    delta = [rewards[t] + gamma * after[t] - values[t] for t in steps]
    return [sum((gamma * lam) ** (k - t) * delta[k] for k in steps if k >= t) for t in steps]


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (0.9, 0.8), (0.99, 0.0), (0.95, 1.0)])
def test_gae_skips_dropped_steps_as_if_they_were_not_there(gamma: float, lam: float) -> None:
    mask = torch.tensor([[1, 0, 1, 1, 0], [1, 1, 1, 1, 1]]).bool()
    rewards = torch.tensor([[0.5, NAN, -1.0, 2.0, NAN], [0.1, 0.2, 0.3, 0.4, 0.5]])
    values = torch.tensor([[0.3, NAN, 0.2, -0.1, NAN], [1.0, -1.0, 0.5, 0.0, 0.25]])
    advantages, returns = gae(rewards, values, mask, gamma=gamma, lam=lam)
    for row in range(2):
        kept = mask[row]
        wanted = loop_gae(rewards[row][kept].tolist(), values[row][kept].tolist(), gamma, lam)
        assert_close(advantages[row][kept], wanted)
        assert_close(returns[row][kept], torch.tensor(wanted) + values[row][kept])
        assert advantages[row][~kept].tolist() == [0.0] * int((~kept).sum())


def test_gae_with_lambda_one_is_the_discounted_return_minus_the_value() -> None:
    rewards, values = torch.ones(1, 4), torch.full((1, 4), 0.5)
    _, returns = gae(rewards, values, torch.ones(1, 4).bool(), gamma=0.5, lam=1.0)
    assert_close(returns, [[1.875, 1.75, 1.5, 1.0]])


def test_what_stands_in_padding_never_matters() -> None:
    mask = torch.tensor([[True, True, False]])
    dirty, clean = torch.tensor([[1.0, 3.0, NAN]]), torch.tensor([[1.0, 3.0, 0.0]])
    assert float(masked_mean(dirty, mask)) == 2.0
    assert torch.equal(whiten(dirty, mask), whiten(clean, mask))
    assert_close(whiten(dirty, mask), [[-(0.5**0.5), 0.5**0.5, 0.0]])


def test_one_value_is_not_whitened() -> None:
    assert whiten(torch.tensor([[3.0, NAN]]), torch.tensor([[True, False]])).tolist() == [[3.0, 0.0]]


@pytest.mark.parametrize(
    ("change", "advantage", "loss"),
    [
        (0.0, 1.0, -1.0),  # on the policy itself
        (1.0, 1.0, -1.2),  # clipped: no reward for going further up
        (1.0, -1.0, math.e),  # not clipped: a bad token made likelier costs all of it
        (-1.0, 1.0, -math.exp(-1.0)),  # not clipped: a good token made rarer
        (-1.0, -1.0, 0.8),  # clipped
    ],
)
def test_policy_loss_in_closed_form(change: float, advantage: float, loss: float) -> None:
    terms = policy_loss(torch.tensor([[change]]), torch.zeros(1, 1), torch.tensor([[advantage]]), clip_range=0.2)
    assert float(terms.loss) == pytest.approx(loss, rel=MATH)
    assert bool(terms.clipped) == (abs(loss) in {1.2, 0.8})


def test_an_extreme_ratio_stays_finite() -> None:
    terms = policy_loss(torch.tensor([[0.0]]), torch.tensor([[-500.0]]), torch.tensor([[-1.0]]), clip_range=0.2)
    assert float(terms.ratio) == pytest.approx(math.exp(20.0))


def test_chunking_and_recomputing_change_neither_values_nor_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    linear = torch.nn.Linear(4, 11)
    hidden, targets, positions = torch.randn(7, 4), torch.randint(0, 11, (7,)), torch.arange(7)

    def run(chunk: int) -> tuple[torch.Tensor, ...]:
        monkeypatch.setattr("ppo_engine.maths.logprobs.CHUNK_LOGITS", chunk)
        monkeypatch.setattr("ppo_engine.maths.logprobs.KEPT_LOGITS", 0)
        inputs = hidden.clone().requires_grad_()
        logprobs, entropy = token_logprobs(
            inputs, targets, positions, linear, Distribution(temperature=0.7), entropy_grad=True
        )
        (logprobs.sum() + 0.3 * entropy.sum()).backward()
        return logprobs.detach(), entropy.detach(), inputs.grad  # type: ignore[return-value]

    whole, split = run(10**9), run(2 * 65_536)
    for one, other in zip(whole, split, strict=True):
        assert_close(one, other)
    table = (linear(hidden) / 0.7).detach().log_softmax(-1)
    assert_close(whole[0], table.gather(1, targets[:, None]).squeeze(1))
    assert_close(whole[1], -(table.exp() * table).sum(-1))


def test_entropy_has_no_gradient_unless_asked() -> None:
    hidden = torch.randn(3, 5, requires_grad=True)
    _, entropy = token_logprobs(
        hidden, torch.tensor([0, 1, 2]), torch.arange(3), lambda x: x * 1.0, Distribution(), entropy_grad=False
    )
    assert not entropy.requires_grad


def test_a_forbidden_end_token_has_probability_zero_in_the_scored_distribution() -> None:
    distribution = Distribution(min_new_tokens=3, eos_ids=(1,))
    logits = distribution.shape(torch.zeros(4, 4), torch.arange(4))
    probabilities = logits.softmax(-1)
    assert probabilities[:2, 1].tolist() == [0.0, 0.0]
    assert_close(probabilities[2:], torch.full((2, 4), 0.25))


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        (Schedule.CONSTANT, [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]),
        (Schedule.LINEAR, [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]),
        (Schedule.COSINE, [0.5, 1.0, 1.0, 0.5 + 0.5 * 0.5**0.5, 0.5, 0.5 - 0.5 * 0.5**0.5]),
    ],
)
def test_learning_rates(schedule: Schedule, rates: list[float]) -> None:
    config = OptimizerConfig(learning_rate=1.0, value_learning_rate=3.0, warmup_steps=2, schedule=schedule)
    found = [learning_rates(config, step, 6, 0.5) for step in range(6)]
    assert [rate.policy for rate in found] == pytest.approx([0.5 * rate for rate in rates])
    assert [rate.critic for rate in found] == pytest.approx([1.5 * rate for rate in rates])


def test_the_critic_learns_at_the_policys_rate_unless_told_otherwise() -> None:
    assert learning_rates(OptimizerConfig(learning_rate=0.25), 0, 1) == (0.25, 0.25)
