"""Language models of several families, two layers and a vocabulary of 61 unless said otherwise."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from ppo_engine.models.policy import LanguageModel

END = 3
ATTENTION = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 61}
GROUPED = ATTENTION | {"num_key_value_heads": 2, "intermediate_size": 64}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": GROUPED,
    "qwen2": GROUPED,
    "gpt2": {"n_layer": 2, "n_embd": 32, "n_head": 4, "vocab_size": 61, "n_positions": 64},
    "opt": ATTENTION | {"ffn_dim": 64, "word_embed_proj_dim": 32, "max_position_embeddings": 64},
    "gpt_neox": ATTENTION | {"intermediate_size": 64},
    "bloom": {"n_layer": 2, "hidden_size": 32, "n_head": 4, "vocab_size": 61},
    "gemma2": GROUPED | {"head_dim": 8, "sliding_window": 8},
    "granite": GROUPED | {"logits_scaling": 3.0},
    "cohere": GROUPED,
}


def language_model(family: str, **options: Any) -> LanguageModel:
    """A random model of a family, in eval mode; `options` go to its config."""
    torch.manual_seed(0)
    special = {"bos_token_id": 1, "eos_token_id": END, "pad_token_id": 0}
    config = AutoConfig.for_model(family, **FAMILIES[family] | special | options)
    return LanguageModel(AutoModelForCausalLM.from_config(config).eval())
