"""GGUF conversion: a model written the way llama.cpp lays it out comes back with the same weights and logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from ppo_engine.errors import ModelUnavailable
from ppo_engine.gguf import convert
from tests.support.tiny_models import tiny_llama

TOKENS = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "19", "ab", "<|begin|>", "<|end|>", "<tool>"]
TYPES = [1] * 258 + [3, 3, 4]
EOS = 259
GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    parts = name.removesuffix(".weight").split(".")
    if parts[:2] == ["model", "layers"]:
        return f"blk.{parts[2]}.{GGUF_NAMES['.'.join(parts[3:])]}.weight"
    return f"{GGUF_NAMES['.'.join(parts)]}.weight"


def interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """Row i of a head's first half and row i of its second half become neighbours, one row after another."""
    size = len(weight) // heads
    rows = []
    for head in range(heads):
        for i in range(size // 2):
            rows += [weight[head * size + i], weight[head * size + size // 2 + i]]
    return np.stack(rows)


def write_gguf(
    path: Path, model: LlamaForCausalLM, *, kind: GGMLQuantizationType = GGMLQuantizationType.F32, **changes: Any
) -> None:
    config = model.config
    writer = GGUFWriter(path, changes.get("architecture", "llama"))
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_tokenizer_model(changes.get("tokenizer", "gpt2"))
    writer.add_tokenizer_pre(changes.get("pre", "smollm"))
    writer.add_token_list(TOKENS)
    writer.add_token_types(TYPES)
    writer.add_token_merges(["1 9", "a b"])
    writer.add_bos_token_id(258)
    writer.add_eos_token_id(EOS)
    writer.add_pad_token_id(EOS)
    writer.add_chat_template("{{ messages[0].content }}<|end|>")
    if "extra_key" in changes:
        writer.add_string(*changes["extra_key"])
    if "add_bos" in changes:
        writer.add_add_bos_token(changes["add_bos"])
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.numpy()
        if "q_proj" in name or "k_proj" in name:
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            values = interleave(values, heads)
        if values.ndim == 1 or kind is GGMLQuantizationType.F32:
            writer.add_tensor(gguf_name(name), values)
        else:
            writer.add_tensor(gguf_name(name), quantize(values, kind), raw_dtype=kind)
    if "extra_tensor" in changes:
        writer.add_tensor(changes["extra_tensor"], np.ones(8, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def model(tmp_path: Path) -> LlamaForCausalLM:
    return new_model(tmp_path)


def new_model(root: Path, **options: Any) -> LlamaForCausalLM:
    options = {"vocab_size": len(TOKENS), "rms_norm_eps": 1e-5, "initializer_range": 0.3} | options
    options["rope_parameters"] = {"rope_type": "default", "rope_theta": 50_000.0}
    return LlamaForCausalLM.from_pretrained(tiny_llama(root / "original", **options)).eval()


def logits(model: LlamaForCausalLM) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.arange(0, 250, 7).unsqueeze(0)).logits


@pytest.mark.parametrize("tied", [True, False])
def test_float32_weights_come_back_exactly(tmp_path: Path, *, tied: bool) -> None:
    model = new_model(tmp_path, tie_word_embeddings=tied)
    write_gguf(tmp_path / "m.gguf", model)
    convert(tmp_path / "m.gguf", tmp_path / "out", torch.float32)
    converted = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert converted.config.tie_word_embeddings is tied
    assert converted.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(value, converted.state_dict()[name]) for name, value in model.state_dict().items())
    assert torch.equal(logits(converted), logits(model))
    assert (converted.config.rms_norm_eps, converted.config.eos_token_id) == (1e-5, EOS)


def test_quantised_weights_are_what_transformers_reads(tmp_path: Path, model: LlamaForCausalLM) -> None:
    write_gguf(tmp_path / "m.gguf", model, kind=GGMLQuantizationType.Q8_0)
    convert(tmp_path / "m.gguf", tmp_path / "out", torch.float32)
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "out").state_dict()
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="m.gguf", dtype=torch.float32).state_dict()
    assert all(torch.equal(ours[name], value) for name, value in theirs.items())
    worst = max((ours[name] - value).abs().max().item() for name, value in model.state_dict().items())
    assert 0 < worst < 0.01  # half a step of 8 bits over +-4 standard deviations of 0.3


def test_the_wanted_dtype_is_stored(tmp_path: Path, model: LlamaForCausalLM) -> None:
    write_gguf(tmp_path / "m.gguf", model)
    convert(tmp_path / "m.gguf", tmp_path / "out", torch.bfloat16)
    converted = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert converted.dtype == torch.bfloat16
    assert torch.equal(converted.model.norm.weight, model.model.norm.weight.to(torch.bfloat16))
    assert (tmp_path / "out" / "model.safetensors").stat().st_mode & 0o044 == 0o044


@pytest.mark.parametrize(
    ("pre", "pieces"), [("smollm", ["1", "9", "9", "9", "ab", "Ġ"]), ("gpt-2", ["19", "9", "9", "ab", "Ġ"])]
)
def test_the_tokenizer_splits_as_the_file_says(
    tmp_path: Path, model: LlamaForCausalLM, pre: str, pieces: list[str]
) -> None:
    write_gguf(tmp_path / "m.gguf", model, pre=pre)
    convert(tmp_path / "m.gguf", tmp_path / "out", torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    text = "1999ab <tool><|end|>"
    encoded = tokenizer(text)
    assert tokenizer.convert_ids_to_tokens(encoded["input_ids"]) == [*pieces, "<tool>", "<|end|>"]
    assert set(encoded) == {"input_ids", "attention_mask"}
    assert tokenizer.decode(encoded["input_ids"]) == text
    assert tokenizer.decode(encoded["input_ids"], skip_special_tokens=True) == "1999ab <tool>"
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == ("<|begin|>", "<|end|>", "<|end|>")
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "hi<|end|>"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"architecture": "gemma"}, "general.architecture is `gemma`; only `llama`"),
        ({"tokenizer": "llama"}, "tokenizer.ggml.model is `llama`; only `gpt2`"),
        ({"pre": "qwen2"}, "pre-tokenizer `qwen2` is not known"),
        ({"add_bos": True}, "adds a begin token"),
        ({"extra_key": ("llama.rope.scaling.type", "yarn")}, "rotary scaling"),
        ({"extra_tensor": "rope_freqs.weight"}, "unknown tensor `rope_freqs.weight`"),
        ({"extra_tensor": "blk.0.attn_q.bias"}, "unknown tensor `blk.0.attn_q.bias`"),
    ],
)
def test_what_would_come_out_wrong_is_refused(
    tmp_path: Path, model: LlamaForCausalLM, change: dict[str, Any], reason: str
) -> None:
    write_gguf(tmp_path / "m.gguf", model, **change)
    with pytest.raises(ModelUnavailable, match=reason):
        convert(tmp_path / "m.gguf", tmp_path / "out", torch.float32)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.gguf", "original"]


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model at all", None])
def test_a_file_that_is_no_gguf_is_unavailable(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(ModelUnavailable, match="cannot be read as a llama GGUF file"):
        convert(tmp_path / "m.gguf", tmp_path / "out", torch.float32)


def test_a_cut_file_is_unavailable(tmp_path: Path, model: LlamaForCausalLM) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, model)
    for size in (100, 3000, path.stat().st_size - 1000):
        path.write_bytes(path.read_bytes()[:size])
        with pytest.raises(ModelUnavailable, match="cannot be read as a llama GGUF file"):
            convert(path, tmp_path / "out", torch.float32)
        write_gguf(path, model)


def test_an_existing_folder_is_left_alone(tmp_path: Path, model: LlamaForCausalLM) -> None:
    write_gguf(tmp_path / "m.gguf", model)
    (tmp_path / "out").mkdir()
    with pytest.raises(FileExistsError):
        convert(tmp_path / "m.gguf", tmp_path / "out", torch.float32)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_failed_write_leaves_nothing(
    tmp_path: Path, model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    write_gguf(tmp_path / "m.gguf", model)
    monkeypatch.setattr("ppo_engine.gguf.save_file", full)
    with pytest.raises(OSError, match="No space"):
        convert(tmp_path / "m.gguf", tmp_path / "out", torch.float32)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.gguf", "original"]
