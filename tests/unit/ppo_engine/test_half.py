"""Frozen weights in bf16 give, under autocast, the numbers that fp32 weights give."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ppo_engine.batch import make_sequences
from ppo_engine.config import LoRAConfig, ModelSource, ValueHeadInit
from ppo_engine.half import halve_frozen, halve_overlay, rounded_by_autocast
from ppo_engine.logprobs import Distribution
from ppo_engine.lora import Adapters
from ppo_engine.models import Policy
from ppo_engine.overlay import OverlaidReference, Overlay, trained_tensors
from tests.support.families import FAMILIES, language_model

SEQUENCES = make_sequences([[5, 6, 7], [8]], [[9, 10], [11, 12, 13]], pad_id=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_halved_reference_says_the_same(family: str) -> None:
    language = language_model(family)
    values = {name: t.clone() for name, t in trained_tensors(language.model).items()}
    reference = OverlaidReference(language, Overlay(language.model, values))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        before = reference(SEQUENCES, Distribution())[0]
        halve_overlay(reference.overlay, language.model)
        assert torch.equal(reference(SEQUENCES, Distribution())[0], before)
    held = reference.overlay.values
    layers = sum(t.nbytes for name, t in held.items() if ".weight" in name and t.dim() == 2 and "embed" not in name)
    assert layers < 0.75 * sum(t.nbytes for n, t in values.items() if ".weight" in n and t.dim() == 2)


@pytest.mark.parametrize("family", FAMILIES)
def test_adapters_on_a_halved_base_get_the_same_gradients(family: str) -> None:
    policy = Policy(language_model(family), ValueHeadInit.NORMAL).eval()
    Adapters(policy.language.model, LoRAConfig(rank=2), ModelSource(path="base"))
    for tensor in trained_tensors(policy.language.model).values():
        torch.manual_seed(0)
        tensor.normal_(std=0.1)

    def gradients() -> dict[str, Tensor]:
        policy.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16):
            outputs = policy(SEQUENCES, Distribution())
        (outputs.logprobs.sum() + outputs.values.sum()).backward()
        return {name: p.grad for name, p in policy.named_parameters() if p.grad is not None}

    plain = gradients()
    halve_frozen(policy.language.model)
    again = gradients()
    assert set(plain) == set(again)
    assert all(torch.equal(again[name], plain[name]) for name in plain)
    assert all(p.dtype is torch.float32 for p in policy.policy_parameters())
    assert any(p.dtype is torch.bfloat16 for p in policy.parameters())


def test_a_tied_head_keeps_its_bits_for_the_embedding() -> None:
    model = language_model("gpt2").model
    assert not {"transformer.wte.weight", "lm_head.weight", "transformer.ln_f.weight"} & rounded_by_autocast(model)
    assert "lm_head.weight" in rounded_by_autocast(language_model("llama").model)
