"""bf16 passes over fp32 masters: nothing small is lost, nothing is held twice, and fp32 is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from ppo_engine.batch import make_sequences
from ppo_engine.config import ModelSource, ResourcesConfig
from ppo_engine.maths.logprobs import Distribution
from ppo_engine.models.compute import ComputeWeights
from ppo_engine.models.loading import load_language_model
from ppo_engine.runtime import compute_dtype
from tests.support.tiny_models import tiny_gpt2
from tests.support.trainers import make_trainer

CPU = torch.device("cpu")
SEQUENCES = make_sequences([[5, 6], [7, 8, 9]], [[10, 11, 12], [13, 14]], pad_id=0)


def test_fp32_computes_with_the_weights_themselves() -> None:
    linear = nn.Linear(3, 2)
    own = linear.weight
    with ComputeWeights([linear], torch.float32).applied():
        assert linear.weight is own


def test_gradients_arrive_at_the_masters_and_are_summed_in_fp32() -> None:
    """256 gradients of 1 and one of 2**-6: a sum in bf16 would lose the last."""
    linear = nn.Linear(1, 1, bias=False)
    weights = ComputeWeights([linear], torch.bfloat16)
    master = linear.weight
    with weights.applied():
        assert linear.weight.dtype is torch.bfloat16
        for scale in [1.0] * 256 + [2**-6]:
            linear(torch.tensor([[scale]], dtype=torch.bfloat16)).sum().backward()
        assert linear.weight.grad is None
    assert linear.weight is master
    assert master.grad is not None
    assert float(master.grad) == 256 + 2**-6


def test_copies_follow_the_masters_when_told() -> None:
    linear = nn.Linear(1, 1, bias=False)
    weights = ComputeWeights([linear], torch.bfloat16)
    with torch.no_grad():
        linear.weight.fill_(0.7)
    weights.refresh()
    with weights.applied():
        assert torch.equal(linear.weight, torch.tensor([[0.7]], dtype=torch.bfloat16))


def test_frozen_weights_are_held_in_half_alone_and_tied_ones_once(tmp_path: Path) -> None:
    tiny_gpt2(tmp_path / "policy")
    language = load_language_model(ModelSource(path="policy"), [tmp_path])
    language.requires_grad_(False)
    language.model.get_input_embeddings().requires_grad_(True)
    weights = ComputeWeights([language], torch.bfloat16)
    assert {p.dtype for p in language.parameters() if not p.requires_grad} == {torch.bfloat16}
    with weights.applied():
        assert language.model.get_output_embeddings().weight is language.model.get_input_embeddings().weight
        logprobs, hidden = language(SEQUENCES, Distribution())
    assert hidden.dtype is torch.bfloat16
    assert logprobs.dtype is torch.float32


def test_half_precision_stays_near_full_precision(tmp_path: Path) -> None:
    """Bounds what bf16 does to a logprob, nats: logits here are of the size of a real model's."""
    tiny_gpt2(tmp_path / "policy", initializer_range=0.3)
    language = load_language_model(ModelSource(path="policy"), [tmp_path])
    with torch.no_grad():
        exact, _ = language(SEQUENCES, Distribution())
        with ComputeWeights([language], torch.bfloat16).applied():
            half, _ = language(SEQUENCES, Distribution())
    difference = (exact - half).abs().max()
    assert 0 < float(difference) < 0.1


def test_auto_is_half_precision_exactly_where_the_processor_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ResourcesConfig()
    for found, wanted in (({"amx_bf16": True}, torch.bfloat16), ({"avx2": True}, torch.float32)):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda found=found: found)
        assert compute_dtype(config, CPU) is wanted
    assert compute_dtype(ResourcesConfig(precision="bf16"), CPU) is torch.bfloat16
    assert compute_dtype(ResourcesConfig(precision="fp32"), CPU) is torch.float32


def test_an_update_in_half_precision_moves_the_masters_by_less_than_bf16_could_hold() -> None:
    """A learning rate far below bf16's resolution must still add up over many optimizer steps."""
    trainer = make_trainer(
        resources={"device": "cpu", "precision": "bf16"}, optimizer={"learning_rate": 1e-6}, ppo={"ppo_epochs": 4}
    )
    before = {name: p.detach().clone() for name, p in trainer.models.policy.language.named_parameters()}
    trainer.update(SEQUENCES.rows(torch.tensor([0, 1])), [1.0, -1.0])
    after = dict(trainer.models.policy.language.named_parameters())
    assert all(p.dtype is torch.float32 for p in after.values())
    moved = [float((after[name].detach() - before[name]).abs().max()) for name in before]
    assert 1e-6 < max(moved) < 1e-4
