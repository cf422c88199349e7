"""Models written the way llama.cpp lays them out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from tokenizers import pre_tokenizers
from transformers import LlamaForCausalLM

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


def new_model(root: Path, **options: Any) -> LlamaForCausalLM:
    options = {"vocab_size": len(TOKENS), "rms_norm_eps": 1e-5, "initializer_range": 0.3} | options
    options["rope_parameters"] = {"rope_type": "default", "rope_theta": 50_000.0}
    return LlamaForCausalLM.from_pretrained(tiny_llama(root / "original", **options)).eval()
