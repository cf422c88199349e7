"""Fused modules compute what they replace, and what is not the same is left alone."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from transformers.activations import NewGELUActivation
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from ppo_engine.models.compute import ComputeWeights
from ppo_engine.models.fusion import fuse
from tests.support.families import FAMILIES, language_model
from tests.support.tolerances import MATH, assert_close


class LlamaLikeRMSNorm(LlamaRMSNorm):
    """Adds 1 to its weight, as Gemma does."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        return super().forward(hidden_states) * 2


def make(kind: str) -> nn.Module:
    torch.manual_seed(0)
    if kind == "gelu":
        return NewGELUActivation()
    norm = LlamaRMSNorm(48, eps=1e-5)
    nn.init.normal_(norm.weight, 1.0)
    return norm


@pytest.mark.parametrize("kind", ["gelu", "norm"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_and_gradients_are_those_of_the_plain_module(kind: str, dtype: torch.dtype) -> None:
    plain = make(kind)
    fused = nn.Sequential(copy.deepcopy(plain))
    fuse(fused)
    plain, fused = plain.to(dtype), fused.to(dtype)
    assert type(fused[0]) is not type(plain)
    assert list(fused[0].state_dict()) == list(plain.state_dict())
    x = torch.randn(7, 48, generator=torch.Generator().manual_seed(1)).to(dtype)
    results = []
    for module in (plain, fused):
        given = x.clone().requires_grad_()
        out = module(given)
        out.square().sum().backward()
        results.append((out, given.grad))
    for theirs, ours in zip(*results, strict=True):
        scale = float(theirs.detach().abs().max())
        assert_close(ours.float() / scale, theirs.float() / scale, MATH if dtype is torch.float32 else 0.02)


def test_a_fused_module_uses_the_weight_that_it_has_now() -> None:
    fused = nn.Sequential(make("norm"))
    fuse(fused)
    twin = copy.deepcopy(fused)
    with torch.no_grad():
        twin[0].weight.zero_()
    x = torch.ones(1, 48)
    assert not bool(twin(x).any())
    assert bool(fused(x).all())


def test_another_norm_of_that_name_stays_as_it_is() -> None:
    model = nn.Sequential(LlamaLikeRMSNorm(48))
    fuse(model)
    assert type(model[0]) is LlamaLikeRMSNorm


def test_fusing_again_changes_nothing() -> None:
    model = nn.Sequential(make("norm"), make("gelu"))
    fuse(model)
    kinds = [type(module) for module in model]
    fuse(model)
    assert [type(module) for module in model] == kinds


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_models_are_fused_when_they_are_wrapped(family: str) -> None:
    assert family in FAMILIES
    left = [m for m in language_model(family).model.modules() if type(m) in (NewGELUActivation, LlamaRMSNorm)]
    assert left == []


class Tied(nn.Module):
    """A table that is looked up and multiplied with, as in a language model with a tied head."""

    def __init__(self, *, tied: bool, padding_idx: int | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(11, 6, padding_idx=padding_idx)
        self.inner = nn.Linear(6, 6)
        self.head = nn.Linear(6, 11, bias=False)
        if tied:
            self.head.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.inner(self.table(ids))))


IDS = torch.tensor([[3, 3, 5], [0, 3, 10]])


def gradients(model: nn.Module, times: int = 2) -> dict[str, Tensor]:
    """Of two losses, one after the other, as two microbatches give them."""
    for scale in range(1, times + 1):
        (scale * model(IDS)).square().sum().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("padding_idx", [None, 3])
def test_a_table_has_the_gradient_of_the_rows_that_were_looked_up(tied: bool, padding_idx: int | None) -> None:
    plain = Tied(tied=tied, padding_idx=padding_idx)
    fused = copy.deepcopy(plain)
    fuse(fused)
    assert type(fused.table) is not nn.Embedding
    expected, found = gradients(plain), gradients(fused)
    assert expected.keys() == found.keys()
    for name, gradient in expected.items():
        assert_close(found[name], gradient, 10 * MATH)


def test_a_table_that_is_not_trained_gets_none() -> None:
    model = Tied(tied=False)
    model.table.weight.requires_grad_(False)
    fuse(model)
    assert "table.weight" not in gradients(model)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("times", [1, 2])
def test_half_precision_collects_rows_at_the_master(tied: bool, times: int) -> None:
    plain, fused = Tied(tied=tied), Tied(tied=tied)
    fuse(fused)
    weights = ComputeWeights([fused], torch.bfloat16)
    masters = dict(fused.named_parameters())
    with weights.applied():
        gradients(fused, times)
    weights.settle(masters.values())
    for name, expected in gradients(plain.bfloat16(), times).items():
        found = masters[name].grad
        assert found is not None
        assert found.dtype is torch.float32
        scale = float(expected.abs().max())
        assert_close(found / scale, expected.float() / scale, 0.03)
