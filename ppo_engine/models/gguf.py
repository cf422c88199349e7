"""llama.cpp's GGUF files as plain Hugging Face folders.

transformers can read GGUF too, but then refuses to save the model, and builds SmolLM2's tokenizer without the splitting
of numbers into digits that `tokenizer.ggml.pre = smollm` means.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, PreTrainedTokenizerFast

from ppo_engine.errors import ModelUnavailable
from ppo_engine.models.gguf_header import check_header

_TOP = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL, _USER_DEFINED = 3, 4  # values of tokenizer.ggml.token_type


def convert(gguf: Path, folder: Path, dtype: torch.dtype) -> None:
    """Write the model in `gguf` to the new `folder`: config, tokenizer, weights in `dtype`. All or nothing.

    Quantised weights are expanded; float32 keeps their exact values.

    Raises:
        ModelUnavailable: not a GGUF file, or not a llama architecture with a tokenizer known here.
        FileExistsError: `folder` exists.
    """
    if folder.exists():
        raise FileExistsError(folder)
    with _readable(gguf):
        check_header(gguf)
        reader = GGUFReader(gguf)
        fields = _fields(reader)
        config, tokenizer, weights = _config(fields), _tokenizer(fields), _weights(reader, fields, dtype)
    config.tie_word_embeddings = "lm_head.weight" not in weights
    config.dtype = dtype
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = folder.with_name(f".{folder.name}-{uuid.uuid4().hex}")
    staging.mkdir()
    try:
        _save(staging, config, tokenizer, weights)
        staging.rename(folder)
    except BaseException:
        shutil.rmtree(staging)
        raise


def describe(gguf: Path) -> tuple[LlamaConfig, PreTrainedTokenizerFast]:
    """Config and tokenizer of the model in `gguf`, without its weights.

    Raises:
        ModelUnavailable: as `convert`.
    """
    with _readable(gguf):
        check_header(gguf)
        reader = GGUFReader(gguf)
        fields = _fields(reader)
        config, tokenizer = _config(fields), _tokenizer(fields)
        names = {_hugging_face_name(tensor.name) for tensor in reader.tensors}
    config.tie_word_embeddings = "lm_head.weight" not in names
    return config, tokenizer


@contextmanager
def _readable(gguf: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, LookupError) as error:
        raise ModelUnavailable(f"`{gguf.name}` cannot be read as a llama GGUF file: {error}") from error


def _fields(reader: GGUFReader) -> dict[str, Any]:
    fields = {name: field.contents() for name, field in reader.fields.items()}
    _check_supported(fields)
    return fields


def _check_supported(fields: Mapping[str, Any]) -> None:
    """Refuse what this module would get silently wrong; unknown tensors are refused where they are named."""
    wanted = {"general.architecture": "llama", "tokenizer.ggml.model": "gpt2"}
    for name, value in wanted.items():
        if fields[name] != value:
            raise ModelUnavailable(f"{name} is `{fields[name]}`; only `{value}` can be converted")
    if fields["tokenizer.ggml.pre"] not in _PRE_TOKENIZERS:
        raise ModelUnavailable(f"the pre-tokenizer `{fields['tokenizer.ggml.pre']}` is not known")
    if fields.get("llama.rope.scaling.type", "none") != "none":
        raise ModelUnavailable("rotary scaling is not supported")
    if fields.get("tokenizer.ggml.add_bos_token", False):
        raise ModelUnavailable("a tokenizer that adds a begin token is not supported")


def _config(fields: Mapping[str, Any]) -> LlamaConfig:
    heads = fields["llama.attention.head_count"]
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=len(fields["tokenizer.ggml.tokens"]),
        hidden_size=fields["llama.embedding_length"],
        intermediate_size=fields["llama.feed_forward_length"],
        num_hidden_layers=fields["llama.block_count"],
        num_attention_heads=heads,
        num_key_value_heads=fields.get("llama.attention.head_count_kv", heads),
        head_dim=fields.get("llama.attention.key_length", fields["llama.embedding_length"] // heads),
        max_position_embeddings=fields["llama.context_length"],
        rms_norm_eps=float(np.format_float_scientific(np.float32(fields["llama.attention.layer_norm_rms_epsilon"]))),
        rope_parameters={"rope_type": "default", "rope_theta": fields.get("llama.rope.freq_base", 10_000.0)},
        bos_token_id=fields.get("tokenizer.ggml.bos_token_id"),
        eos_token_id=fields["tokenizer.ggml.eos_token_id"],
        pad_token_id=fields.get("tokenizer.ggml.padding_token_id"),
    )


def _weights(reader: GGUFReader, fields: Mapping[str, Any], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    heads = fields["llama.attention.head_count"]
    key_heads = fields.get("llama.attention.head_count_kv", heads)
    weights = {}
    for tensor in reader.tensors:
        name = _hugging_face_name(tensor.name)
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if name.endswith("q_proj.weight"):
            values = _unpermute(values, heads)
        elif name.endswith("k_proj.weight"):
            values = _unpermute(values, key_heads)
        weights[name] = torch.from_numpy(values).to(dtype).contiguous()
    return weights


def _hugging_face_name(name: str) -> str:
    match name.split("."):
        case [part, "weight"] if part in _TOP:
            return f"{_TOP[part]}.weight"
        case ["blk", layer, part, "weight"] if part in _BLOCK:
            return f"model.layers.{layer}.{_BLOCK[part]}.weight"
    raise ModelUnavailable(f"unknown tensor `{name}`")


def _unpermute(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Rotary pairs lie next to each other in llama.cpp and half a head apart in transformers."""
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def _byte_level() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _digits_then_bytes() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _byte_level()])


_PRE_TOKENIZERS = {"gpt-2": _byte_level, "smollm": _digits_then_bytes}
"""By the value of `tokenizer.ggml.pre`."""


def _tokenizer(fields: Mapping[str, Any]) -> PreTrainedTokenizerFast:
    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    bpe = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    bpe.pre_tokenizer = _PRE_TOKENIZERS[fields["tokenizer.ggml.pre"]]()
    bpe.decoder = decoders.ByteLevel()
    typed = list(zip(tokens, kinds, strict=True))
    bpe.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, kind in typed if kind == _CONTROL])
    bpe.add_tokens([AddedToken(t, normalized=False) for t, kind in typed if kind == _USER_DEFINED])
    ids = {name: fields.get(f"tokenizer.ggml.{key}_token_id") for name, key in _SPECIAL.items()}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        model_max_length=fields["llama.context_length"],
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        **{name: tokens[index] for name, index in ids.items() if index is not None},
    )
    tokenizer.chat_template = fields.get("tokenizer.chat_template")
    return tokenizer


_SPECIAL = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}


def _save(
    folder: Path, config: LlamaConfig, tokenizer: PreTrainedTokenizerFast, weights: dict[str, torch.Tensor]
) -> None:
    config.save_pretrained(folder)
    ids = {name: getattr(config, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    GenerationConfig(**ids).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # safetensors makes files that only their owner can read
