"""The optimizer step: the same numbers whether gradients wait in half precision, in buckets, or are all there."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import nn

from ppo_engine.config import OptimizerConfig
from ppo_engine.errors import NonFinite
from ppo_engine.models import compute
from ppo_engine.models.compute import ComputeWeights
from ppo_engine.update.optim import GuardedStepper, make_optimizer

CONFIG = OptimizerConfig(learning_rate=1e-2, weight_decay=0.1)
X = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))


def stepper(model: nn.Module, dtype: torch.dtype, limit: float | None) -> tuple[GuardedStepper, ComputeWeights]:
    parameters = list(model.parameters())
    optimizer: Any = make_optimizer(parameters[:-2], parameters[-2:], CONFIG)
    weights = ComputeWeights([model], dtype)
    return GuardedStepper(Accelerator(cpu=True), optimizer, weights, limit), weights


def learn(model: nn.Module, dtype: torch.dtype, limit: float | None) -> list[float]:
    """Two optimizer steps, the second of two microbatches; returns the norms."""
    found, weights = stepper(model, dtype, limit)
    norms = []
    for parts in ([X], [X[:2], X[2:]]):
        with weights.applied():
            for part in parts:
                found.backward(model(part.to(dtype)).float().square().sum())
        norms.append(found.step())
    return norms


def reference(model: nn.Module, dtype: torch.dtype, limit: float | None) -> list[float]:
    """The same with torch alone: gradients of a copy in `dtype`, summed, clipped and used in fp32."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1, eps=CONFIG.eps, betas=CONFIG.betas)
    norms = []
    for parts in ([X], [X[:2], X[2:]]):
        optimizer.zero_grad()
        for part in parts:
            half = copy.deepcopy(model).to(dtype)
            half.zero_grad()
            half(part.to(dtype)).float().square().sum().backward()
            for master, other in zip(model.parameters(), half.parameters(), strict=True):
                assert other.grad is not None
                master.grad = other.grad.float() if master.grad is None else master.grad + other.grad.float()
        limit_or_none = float("inf") if limit is None else limit
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), limit_or_none)))
        optimizer.step()
    return norms


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("limit", [None, 0.1, 1e6])
@pytest.mark.parametrize("bucket", [1, 50, 10**6])
def test_steps_are_those_of_torch(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, limit: float | None, bucket: int
) -> None:
    monkeypatch.setattr(compute, "_BUCKET_VALUES", bucket)
    ours, theirs = network(), network()
    assert learn(ours, dtype, limit) == pytest.approx(reference(theirs, dtype, limit), rel=1e-6)
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-7)
        assert mine.grad is None


def test_a_gradient_that_is_not_finite_reaches_no_weight_and_is_forgotten() -> None:
    model = network()
    before = copy.deepcopy(model.state_dict())
    found, weights = stepper(model, torch.bfloat16, 1.0)
    with weights.applied():
        found.backward(model(X.bfloat16()).sum() * torch.inf)
    with pytest.raises(NonFinite):
        found.step()
    assert all(weights.gradient(p) is None for p in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert found.step() == 0.0
