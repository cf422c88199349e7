"""Fused modules compute what they replace, and what is not the same is left alone."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from transformers.activations import NewGELUActivation
from transformers.models.llama.modeling_llama import LlamaRMSNorm

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
