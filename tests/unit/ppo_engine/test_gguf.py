"""GGUF conversion: a model written the way llama.cpp lays it out comes back with the same weights and logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from ppo_engine.errors import ModelUnavailable
from ppo_engine.models.gguf import convert
from tests.support.gguf_files import EOS, new_model, write_gguf


@pytest.fixture
def model(tmp_path: Path) -> LlamaForCausalLM:
    return new_model(tmp_path)


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
    monkeypatch.setattr("ppo_engine.models.gguf.save_file", full)
    with pytest.raises(OSError, match="No space"):
        convert(tmp_path / "m.gguf", tmp_path / "out", torch.float32)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.gguf", "original"]
