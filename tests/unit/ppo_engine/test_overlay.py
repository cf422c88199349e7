"""Other weights in the same network: what it computes with them, and what it is afterwards."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from ppo_engine.batch import make_sequences
from ppo_engine.maths.logprobs import Distribution
from ppo_engine.models.overlay import OverlaidReference, Overlay, trained_tensors
from ppo_engine.models.policy import LanguageModel
from tests.support.tiny_models import tiny_gpt2, tiny_llama
from tests.support.tolerances import assert_close

SEQUENCES = make_sequences([[5, 6, 7], [8]], [[9, 10], [11, 12, 13]], pad_id=0)


@pytest.fixture(params=[tiny_llama, tiny_gpt2])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    made: Path = request.param(tmp_path / "model")
    return made


def loaded(folder: Path) -> LanguageModel:
    return LanguageModel(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval())


def perturb(language: LanguageModel) -> None:
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in language.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)


@torch.no_grad()
def test_an_overlaid_reference_is_the_model_as_it_was(folder: Path) -> None:
    """Tied weights (GPT-2) and untied ones; head and trunk; and the policy is itself again afterwards."""
    language, before = loaded(folder), loaded(folder)
    values = {name: t.clone() for name, t in trained_tensors(language.model).items()}
    reference = OverlaidReference(language, Overlay(language.model, values))
    perturb(language)
    after = copy.deepcopy(language)
    hidden = torch.randn(3, 32)
    for ours, theirs in zip(reference(SEQUENCES, Distribution()), before(SEQUENCES, Distribution()), strict=True):
        assert torch.equal(ours, theirs)
    assert torch.equal(reference.head(hidden), before.head(hidden))
    assert torch.equal(language(SEQUENCES, Distribution())[0], after(SEQUENCES, Distribution())[0])
    assert torch.equal(language.head(hidden), after.head(hidden))
    assert not torch.equal(reference(SEQUENCES, Distribution())[0], language(SEQUENCES, Distribution())[0])


@torch.no_grad()
def test_an_overlay_works_inside_autocast_where_the_policy_was_cached(folder: Path) -> None:
    language, before = loaded(folder), loaded(folder)
    values = {name: t.clone() for name, t in trained_tensors(language.model).items()}
    reference = OverlaidReference(language, Overlay(language.model, values))
    perturb(language)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        wanted = before(SEQUENCES, Distribution())[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        own = language(SEQUENCES, Distribution())[0]
        assert torch.equal(reference(SEQUENCES, Distribution())[0], wanted)
        assert torch.equal(language(SEQUENCES, Distribution())[0], own)


def test_an_overlay_is_lifted_when_the_forward_pass_fails(folder: Path) -> None:
    language = loaded(folder)
    overlay = Overlay(language.model, {name: t * 0 for name, t in trained_tensors(language.model).items()})
    before = dict(language.model.named_parameters())
    with pytest.raises(RuntimeError, match="no"), overlay.applied():
        raise RuntimeError("no")
    assert all(p is before[name] for name, p in language.model.named_parameters())


def test_the_average_follows_as_a_loop_over_floats_does() -> None:
    module = torch.nn.Linear(1, 1, bias=False)
    overlay = Overlay(module, {"weight": torch.tensor([[2.0]])})
    expected = 2.0
    for value in (4.0, -1.0, 0.5):
        overlay.follow({"weight": torch.tensor([[value]])}, 0.9)
        expected = 0.9 * expected + 0.1 * value
    assert_close(overlay.values["weight"], [[expected]])


def test_values_taken_over_do_not_change_with_their_source() -> None:
    module = torch.nn.Linear(1, 1, bias=False)
    overlay = Overlay(module, {"weight": torch.tensor([[2.0]])})
    overlay.replace(trained_tensors(module))
    wanted = module.weight.detach().clone()
    with torch.no_grad():
        module.weight.add_(1.0)
    assert torch.equal(overlay.values["weight"], wanted)
