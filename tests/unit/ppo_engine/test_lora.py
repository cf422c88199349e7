"""Adapters: the model without them, what a reader of their folder gets, and an adapter that a policy starts with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from ppo_engine.batch import make_sequences
from ppo_engine.config import LoRAConfig, ModelConfig, ModelSource
from ppo_engine.errors import InvalidConfig, ModelUnavailable
from ppo_engine.maths.logprobs import Distribution
from ppo_engine.models.lora import Adapters, merge
from ppo_engine.models.networks import Models, Origin, assemble, load_policy
from ppo_engine.models.overlay import trained_tensors
from tests.support.tiny_models import byte_tokenizer, tiny_gpt2, tiny_llama
from tests.support.tolerances import MATH, assert_close

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # PEFT's

IDS = torch.tensor([[5, 6, 7, 8]])
BASE = ModelSource(path="policy")
MAKERS = {"llama": tiny_llama, "gpt2": tiny_gpt2}


def plain(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(input_ids=IDS).logits
    return found


def perturb(model: Any) -> None:
    torch.manual_seed(2)
    with torch.no_grad():
        for tensor in trained_tensors(model).values():
            tensor.add_(torch.randn_like(tensor), alpha=0.1)


@pytest.fixture(params=MAKERS)
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    MAKERS[request.param](tmp_path / "policy")
    return tmp_path


def test_new_adapters_change_nothing_and_alone_are_trained(root: Path) -> None:
    model, before = plain(root / "policy"), logits(plain(root / "policy"))
    Adapters(model, LoRAConfig(rank=4), BASE)
    assert torch.equal(logits(model), before)
    names = list(trained_tensors(model))
    assert names
    assert all(".lora_A." in name or ".lora_B." in name for name in names)
    assert all(tensor.dtype is torch.float32 for tensor in trained_tensors(model).values())
    linear = {name.split(".lora_")[0].rsplit(".", 1)[-1] for name in names}
    llama = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert linear in (llama, {"c_attn", "c_proj", "c_fc"})


def test_peft_reads_a_saved_adapter_on_the_base(root: Path) -> None:
    model = plain(root / "policy")
    adapters = Adapters(model, LoRAConfig(rank=4, alpha=12.0), BASE)
    perturb(model)
    adapters.save(root / "saved")
    assert not torch.allclose(logits(model), logits(plain(root / "policy")))
    assert_close(logits(peft.PeftModel.from_pretrained(plain(root / "policy"), root / "saved")), logits(model))
    again = plain(root / "policy")
    Adapters(again, LoRAConfig(rank=4, alpha=12.0), BASE).load(root / "saved")
    assert torch.equal(logits(again), logits(model))
    assert {path.name for path in (root / "saved").iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    assert json.loads((root / "saved/adapter_config.json").read_text())["base_model_name_or_path"] == "policy"
    assert str(root) not in (root / "saved/adapter_config.json").read_text()


@pytest.mark.parametrize(
    ("targets", "message"), [(["q_proj", "nothing"], "no module `nothing`"), (["lm_head"], "take no adapter")]
)
def test_targets_that_cannot_be_are_refused(tmp_path: Path, targets: list[str], message: str) -> None:
    model = plain(tiny_llama(tmp_path / "policy"))
    with pytest.raises(InvalidConfig, match=message):
        Adapters(model, LoRAConfig(target_modules=targets), BASE)


def test_chosen_targets_alone_get_adapters(tmp_path: Path) -> None:
    model = plain(tiny_llama(tmp_path / "policy"))
    Adapters(model, LoRAConfig(target_modules=["q_proj", "v_proj"]), BASE)
    assert {name.split(".")[4] for name in trained_tensors(model)} == {"q_proj", "v_proj"}


def test_a_module_that_is_not_linear_gets_no_adapter(tmp_path: Path) -> None:
    model = plain(tiny_llama(tmp_path / "policy"))
    with pytest.raises(InvalidConfig, match=r"model\.lora"):
        Adapters(model, LoRAConfig(target_modules=["self_attn"]), BASE)


def sft_adapter(root: Path) -> dict[str, Tensor]:
    """An adapter as supervised fine-tuning leaves one; returns its tensors."""
    model = peft.get_peft_model(
        plain(root / "policy"), peft.LoraConfig(task_type="CAUSAL_LM", r=2, lora_alpha=6, target_modules=["q_proj"])
    )
    perturb(model)
    model.save_pretrained(root / "sft")
    return load_file(root / "sft/adapter_model.safetensors")


def test_a_merged_adapter_is_w_plus_alpha_over_r_times_ba(tmp_path: Path) -> None:
    tiny_llama(tmp_path / "policy")
    tensors, base, model = sft_adapter(tmp_path), plain(tmp_path / "policy"), plain(tmp_path / "policy")
    merge(model, ModelSource(path="sft"), [tmp_path])
    merged, before = dict(model.named_parameters()), dict(base.named_parameters())
    assert set(merged) == set(before)
    for name, weight in merged.items():
        expected = before[name]
        if "q_proj" in name:
            stem = "base_model.model." + name.removesuffix(".weight")
            expected = expected + 6 / 2 * tensors[f"{stem}.lora_B.weight"] @ tensors[f"{stem}.lora_A.weight"]
        assert_close(weight, expected, MATH)
        assert weight.requires_grad


def models_of(root: Path, **changes: Any) -> Models:
    config = ModelConfig.model_validate(
        {"policy": {"path": "policy"}, "adapter": {"path": "sft"}, "lora": {"rank": 2}} | changes
    )
    language = load_policy(config, [root])
    origin = Origin(source=BASE, language=language, tokenizer=byte_tokenizer(), other_reference=None)
    return assemble(config, origin, None)


@torch.no_grad()
def test_an_sft_adapter_is_part_of_policy_and_reference(tmp_path: Path) -> None:
    """Defect 14: the reference was the base without it, so KL was not 0 before training."""
    tiny_llama(tmp_path / "policy")
    sft_adapter(tmp_path)
    sequences = make_sequences([[5, 6]], [[7, 8, 9]], pad_id=0)
    models = models_of(tmp_path)
    assert models.reference is not None
    policy, reference = models.policy(sequences, Distribution()), models.reference(sequences, Distribution())
    assert torch.equal(policy.logprobs, reference[0])
    bare = ModelConfig.model_validate({"policy": {"path": "policy"}})
    base = load_policy(bare, [tmp_path])(sequences, Distribution())[0]
    assert not torch.allclose(reference[0], base)
    perturb(models.policy.language.model)
    assert torch.equal(models.reference(sequences, Distribution())[0], reference[0])
    assert not torch.allclose(models.policy(sequences, Distribution()).logprobs, reference[0])


@pytest.mark.parametrize("lora", [None, {"rank": 2}])
def test_a_policy_that_starts_with_an_adapter_trains(tmp_path: Path, lora: Any) -> None:
    """Defect 9: only the value head trained."""
    tiny_llama(tmp_path / "policy")
    sft_adapter(tmp_path)
    policy = models_of(tmp_path, lora=lora).policy
    policy(make_sequences([[5, 6]], [[7, 8, 9]], pad_id=0), Distribution()).logprobs.sum().backward()
    moved = [p for p in policy.policy_parameters() if p.grad is not None and bool(p.grad.any())]
    assert len(moved) >= len(policy.policy_parameters()) / 2  # of a fresh adapter only B has a gradient at first


def test_an_adapter_for_another_model_is_refused(tmp_path: Path) -> None:
    tiny_llama(tmp_path / "policy", num_hidden_layers=3)
    sft_adapter(tmp_path)
    for name, options in (("wide", {"hidden_size": 64}), ("shallow", {"num_hidden_layers": 2})):
        with pytest.raises(InvalidConfig, match=r"model\.adapter: `sft` does not fit"):
            merge(plain(tiny_llama(tmp_path / name, **options)), ModelSource(path="sft"), [tmp_path])
    with pytest.raises(InvalidConfig, match=r"model\.adapter: `sft` does not fit"):
        merge(plain(tiny_gpt2(tmp_path / "gpt2")), ModelSource(path="sft"), [tmp_path])


def test_an_adapter_that_is_a_pickle_is_refused(tmp_path: Path) -> None:
    tiny_llama(tmp_path / "policy")
    sft_adapter(tmp_path)
    (tmp_path / "sft/adapter_model.safetensors").rename(tmp_path / "sft/adapter_model.bin")
    with pytest.raises(ModelUnavailable, match=r"no adapter_model\.safetensors"):
        merge(plain(tmp_path / "policy"), ModelSource(path="sft"), [tmp_path])


def test_a_damaged_adapter_is_refused(tmp_path: Path) -> None:
    tiny_llama(tmp_path / "policy")
    tensors = sft_adapter(tmp_path)
    weights = tmp_path / "sft/adapter_model.safetensors"
    save_file(dict(list(tensors.items())[1:]), weights)
    with pytest.raises(InvalidConfig, match="1 of its tensors do not match"):
        merge(plain(tmp_path / "policy"), ModelSource(path="sft"), [tmp_path])
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(ModelUnavailable, match="cannot be read"):
        merge(plain(tmp_path / "policy"), ModelSource(path="sft"), [tmp_path])
