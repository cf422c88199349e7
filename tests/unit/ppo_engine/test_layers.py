"""Training the top layers only, and keeping fewer activations: the same numbers, for less."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from ppo_engine.batch import Sequences, make_sequences
from ppo_engine.config import ValueHeadInit
from ppo_engine.errors import InvalidConfig
from ppo_engine.maths.logprobs import Distribution
from ppo_engine.models.freezing import freeze_lower_layers
from ppo_engine.models.overlay import trained_tensors
from ppo_engine.models.policy import LanguageModel, Policy
from tests.support.families import FAMILIES, language_model
from tests.support.tolerances import MATH, assert_close

SEQUENCES = make_sequences([[5, 6, 7], [8, 9, 10, 11, 12], [13]], [[14, 15], [16], [17, 18, 19, 20]], pad_id=0)


def policy_of(family: str, **config: Any) -> Policy:
    language = language_model(family, num_hidden_layers=3, **config)
    torch.manual_seed(1)
    return Policy(language, ValueHeadInit.NORMAL).eval()


def gradients(policy: Policy, sequences: Sequences) -> dict[str, Tensor]:
    policy.zero_grad(set_to_none=True)
    outputs = policy(sequences, Distribution(), entropy_grad=True)
    (outputs.logprobs.sum() + outputs.values.square().sum() + outputs.entropy.sum()).backward()
    return {name: p.grad for name, p in policy.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_shared_trunk_gives_what_the_whole_model_gives(family: str) -> None:
    """Outputs and gradients of a microbatch, which has fewer rows and columns than what was shared."""
    policy = policy_of(family)
    freeze_lower_layers(policy.language, 1)
    shared = policy.language.trunk.share(SEQUENCES, torch.arange(len(SEQUENCES)).split(2))
    assert shared.frozen is not None
    assert not shared.frozen.requires_grad
    rows = torch.tensor([2, 0])
    found, wanted = policy(shared.rows(rows), Distribution()), policy(SEQUENCES.rows(rows), Distribution())
    for name in ("logprobs", "entropy", "values"):
        assert_close(getattr(found, name), getattr(wanted, name), MATH)
    ours, plain = gradients(policy, shared.rows(rows)), gradients(policy, SEQUENCES.rows(rows))
    assert set(ours) == set(plain)
    for name, gradient in ours.items():
        torch.testing.assert_close(gradient, plain[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_last_layer_the_norm_and_an_untied_head_are_trained(family: str) -> None:
    policy = policy_of(family, tie_word_embeddings=False)
    freeze_lower_layers(policy.language, 1)
    names = set(trained_tensors(policy.language.model))
    layers = {int(part) for name in names for part in name.split(".") if part.isdigit()}
    assert layers == {2}
    rest = {name for name in names if not any(part.isdigit() for part in name.split("."))}
    assert any("norm" in name or "ln_f" in name for name in rest)
    assert any("lm_head" in name or "embed_out" in name for name in rest)
    assert not any("embed_tokens" in name or "wte" in name or "wpe" in name for name in rest)
    assert all(bool(g.any()) for name, g in gradients(policy, SEQUENCES).items() if "bias" not in name)


def test_a_tied_head_is_frozen_with_its_embeddings() -> None:
    policy = policy_of("gpt2")
    freeze_lower_layers(policy.language, 2)
    rest = {name for name in trained_tensors(policy.language.model) if ".h." not in name}
    assert rest == {"transformer.ln_f.weight", "transformer.ln_f.bias"}


def test_with_all_layers_trained_there_is_nothing_to_share() -> None:
    policy = policy_of("llama")
    freeze_lower_layers(policy.language, 3)
    assert policy.language.trunk.share(SEQUENCES, torch.arange(len(SEQUENCES)).split(2)) is SEQUENCES
    assert "model.embed_tokens.weight" not in trained_tensors(policy.language.model)


def test_more_layers_than_there_are_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="is 4, and the policy has 3 layers"):
        freeze_lower_layers(policy_of("llama").language, 4)


def test_layers_that_share_more_than_hidden_states_are_refused() -> None:
    language = language_model("llama", num_hidden_layers=3)
    seen: list[Tensor] = []
    layers = language.model.model.layers
    layers[0].register_forward_hook(lambda *args: seen.append(args[-1]))
    layers[2].register_forward_hook(lambda module, inputs, output: output + seen[-1])
    with pytest.raises(InvalidConfig, match="cannot be split"):
        freeze_lower_layers(language, 1)


def kept_bytes(policy: Policy, sequences: Sequences) -> int:
    """Bytes of distinct tensors that a forward pass keeps for the backward pass, weights left out."""
    weights = {p.untyped_storage().data_ptr() for p in policy.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = policy(sequences, Distribution())
    assert outputs.logprobs.requires_grad
    return sum(kept.values())


@pytest.mark.parametrize("family", FAMILIES)
def test_gradient_checkpointing_changes_no_gradient(family: str) -> None:
    policy = policy_of(family)
    plain = gradients(policy, SEQUENCES)
    policy.language.trunk.checkpoint_layers(True)
    again = gradients(policy, SEQUENCES)
    assert set(again) == set(plain)
    assert all(torch.equal(again[name], plain[name]) for name in plain)


def test_gradient_checkpointing_keeps_one_tensor_per_layer() -> None:
    """Defect 12: the models are in eval mode, where the switch that transformers has does nothing."""
    sequences = make_sequences([list(range(20))] * 8, [list(range(20))] * 8, pad_id=0)
    policy = {
        layers: Policy(language_model("llama", num_hidden_layers=layers), ValueHeadInit.ZERO) for layers in (2, 6)
    }
    plain = {layers: kept_bytes(p, sequences) for layers, p in policy.items()}
    for p in policy.values():
        p.language.trunk.checkpoint_layers(True)
    checkpointed = {layers: kept_bytes(p, sequences) for layers, p in policy.items()}
    tokens, hidden = 8 * 39, 32
    assert (checkpointed[6] - checkpointed[2]) / 4 <= 2 * tokens * hidden * 4  # hidden states in, and a copy at most
    assert (plain[6] - plain[2]) > 8 * (checkpointed[6] - checkpointed[2])


def test_the_shared_trunk_keeps_and_holds_only_what_the_trained_layers_need() -> None:
    """Defect 13: freezing layers saved no memory."""
    sequences = make_sequences([list(range(20))] * 8, [list(range(20))] * 8, pad_id=0)
    policy = Policy(language_model("llama", num_hidden_layers=6), ValueHeadInit.ZERO)
    whole = kept_bytes(policy, sequences)
    freeze_lower_layers(policy.language, 1)
    assert kept_bytes(policy, policy.language.trunk.share(sequences, torch.arange(len(sequences)).split(8))) < whole / 3
    per_layer = sum(p.numel() for p in policy.language.model.model.layers[0].parameters())
    trained = sum(t.numel() for name, t in trained_tensors(policy.language.model).items() if "layers" in name)
    assert trained == per_layer


def test_sampling_with_a_cache_is_not_checkpointed() -> None:
    policy = policy_of("llama")
    policy.language.trunk.checkpoint_layers(True)
    cache = DynamicCache(config=policy.language.model.config)
    ids = torch.tensor([[5, 6]])
    policy.language.trunk(ids, torch.ones_like(ids), cache=cache, use_cache=True).sum().backward()
    assert cache.get_seq_length() == 2


def test_a_model_without_a_list_of_layers_is_refused() -> None:
    language: LanguageModel = language_model("llama", num_hidden_layers=2)
    language.model.config.num_hidden_layers = 5
    with pytest.raises(InvalidConfig, match="no known list of 5 decoder layers"):
        freeze_lower_layers(language, 1)
