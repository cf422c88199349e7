"""The log-probability of a token, its entropy and its gradient, against plain log_softmax in double precision."""

from __future__ import annotations

import pytest
import torch

from ppo_engine.maths import logprobs, softmax
from ppo_engine.maths.logprobs import Distribution, token_logprobs
from ppo_engine.maths.softmax import picked_logprobs
from tests.support.tolerances import GOLDEN, assert_close


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("block", [11, 33, 10_000])
def test_values_and_gradient_are_those_of_log_softmax(
    monkeypatch: pytest.MonkeyPatch, temperature: float, block: int
) -> None:
    monkeypatch.setattr(softmax, "_BLOCK_LOGITS", block)
    torch.manual_seed(0)
    logits, targets, weights = 4 * torch.randn(7, 11), torch.randint(0, 11, (7,)), torch.randn(7)
    ours, plain = logits.clone().requires_grad_(), logits.double().requires_grad_()
    taken, entropy = picked_logprobs(ours, targets, temperature)
    table = (plain / temperature).log_softmax(-1)
    expected = table.gather(1, targets[:, None]).squeeze(1)
    assert_close(taken, expected.detach().float(), GOLDEN)
    assert_close(entropy, -(table.exp() * table).sum(-1).detach().float(), GOLDEN)
    (weights * taken).sum().backward()
    (weights * expected).sum().backward()
    assert ours.grad is not None
    assert plain.grad is not None
    assert_close(ours.grad, plain.grad.float())
    assert not entropy.requires_grad


def test_half_precision_keeps_the_logits_precision_for_the_gradient_and_sums_in_full() -> None:
    torch.manual_seed(0)
    logits = (4 * torch.randn(5, 1000)).bfloat16()
    targets, ours = torch.randint(0, 1000, (5,)), logits.clone().requires_grad_()
    taken, entropy = picked_logprobs(ours, targets)
    table = logits.double().log_softmax(-1)
    assert_close(taken, table.gather(1, targets[:, None]).squeeze(1).float(), GOLDEN)
    assert_close(entropy, -(table.exp() * table).sum(-1).float(), GOLDEN)
    taken.sum().backward()
    assert ours.grad is not None
    assert ours.grad.dtype is torch.bfloat16
    expected = torch.nn.functional.one_hot(targets, 1000) - table.exp()
    assert float((ours.grad.double() - expected).abs().max()) < 2**-8


def test_many_logits_are_made_again_and_few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same numbers either way; what is held for the backward pass does not grow with the vocabulary."""
    torch.manual_seed(0)
    targets, positions = torch.randint(0, 999, (40,)), torch.arange(40)
    linear = torch.nn.Linear(4, 999)
    linear.vocabulary = 999  # type: ignore[assignment]

    def run(kept: int, chunk: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        monkeypatch.setattr(logprobs, "KEPT_LOGITS", kept)
        monkeypatch.setattr(logprobs, "CHUNK_LOGITS", chunk)
        hidden = torch.linspace(-1, 1, 160).reshape(40, 4).requires_grad_()
        held: list[int] = []

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            held.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            found, _ = token_logprobs(hidden, targets, positions, linear, Distribution(), entropy_grad=False)
        found.sum().backward()
        assert hidden.grad is not None
        return sum(held), found.detach(), hidden.grad

    kept, again = run(10**6, 10**6), run(0, 2 * 999)
    assert kept[0] > 40 * 999
    assert again[0] < 10 * 999
    assert_close(kept[1], again[1])
    assert_close(kept[2], again[2])


@pytest.mark.parametrize("block", [11, 33, 10_000])
def test_impossible_tokens_have_no_share_and_no_gradient(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(softmax, "_BLOCK_LOGITS", block)
    torch.manual_seed(0)
    logits, targets, weights = 4 * torch.randn(7, 11), torch.tensor([0, 1, 2, 3, 4, 5, 9]), torch.randn(7)
    rows, ids = torch.tensor([True, False, True, True, False, False, False]), torch.tensor([9, 10])
    ours, plain = logits.clone().requires_grad_(), logits.double().requires_grad_()
    taken, entropy = picked_logprobs(ours, targets, 0.7, (rows, ids))
    gone = rows[:, None] & torch.isin(torch.arange(11), ids)
    table = (plain / 0.7).masked_fill(gone, -torch.inf).log_softmax(-1)
    expected = table.gather(1, targets[:, None]).squeeze(1)
    assert_close(taken, expected.detach().float(), GOLDEN)
    assert_close(entropy, -torch.xlogy(table.exp(), table.exp()).sum(-1).detach().float(), GOLDEN)
    (weights * taken).sum().backward()
    (weights * expected).sum().backward()
    assert ours.grad is not None
    assert plain.grad is not None
    assert_close(ours.grad, plain.grad.float())
    assert not bool(ours.grad[gone].any())
    assert torch.equal(ours.detach(), logits)
