"""Random models of a few thousand parameters, saved as Hugging Face folders, with a tokenizer of one token per byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

END, PAD = "<|end|>", "<|pad|>"
VOCABULARY = 258
"""256 bytes, an end token (256) and a pad token (257)."""


def byte_tokenizer(*, pad: str | None = END) -> PreTrainedTokenizerFast:
    """Any text, one token per UTF-8 byte; padding with the end token, as GPT-2 and SmolLM2 do, unless `pad` differs."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bpe = Tokenizer(models.BPE({character: index for index, character in enumerate(alphabet)}, []))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.add_special_tokens([AddedToken(END, normalized=False), AddedToken(PAD, normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=END, pad_token=pad)


def tiny_llama(folder: Path, *, seed: int = 0, pad: str | None = END, **config: Any) -> Path:
    """A two-layer Llama policy with grouped-query attention; returns `folder`."""
    torch.manual_seed(seed)
    return _save(LlamaForCausalLM(_llama_config(**config)), byte_tokenizer(pad=pad), folder)


def tiny_gpt2(folder: Path, *, seed: int = 0, pad: str | None = END, **config: Any) -> Path:
    """A two-layer GPT-2 policy: absolute positions, dropout, tied embeddings; returns `folder`."""
    torch.manual_seed(seed)
    return _save(GPT2LMHeadModel(_gpt2_config(**config)), byte_tokenizer(pad=pad), folder)


def tiny_classifier(
    folder: Path, *, family: str = "llama", labels: int = 1, nan: bool = False, seed: int = 0, pad: str | None = END
) -> Path:
    """A sequence classifier of a family (`llama`, `gpt2`, `bert`); with `nan`, every score is NaN; returns `folder`."""
    torch.manual_seed(seed)
    families = {
        "llama": (LlamaForSequenceClassification, _llama_config),
        "gpt2": (GPT2ForSequenceClassification, _gpt2_config),
        "bert": (BertForSequenceClassification, _bert_config),
    }
    make, configure = families[family]
    model = make(configure(num_labels=labels))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:  # wider than the default, so that scores differ visibly
                parameter.normal_(std=0.3)
        head = model.classifier if family == "bert" else model.score
        if nan:
            head.weight.fill_(torch.nan)
    return _save(model, byte_tokenizer(pad=pad), folder)


def _llama_config(**options: Any) -> LlamaConfig:
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    limits = {"num_key_value_heads": 2, "max_position_embeddings": 256, "vocab_size": VOCABULARY}
    return LlamaConfig(**shape | limits | _special_ids() | options)


def _gpt2_config(**options: Any) -> GPT2Config:
    shape = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "vocab_size": VOCABULARY}
    return GPT2Config(**shape | _special_ids() | options)


def _bert_config(**options: Any) -> BertConfig:
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return BertConfig(
        **shape | {"max_position_embeddings": 256, "vocab_size": VOCABULARY, "pad_token_id": 256} | options
    )


def _special_ids() -> dict[str, Any]:
    return {"bos_token_id": None, "eos_token_id": 256, "pad_token_id": None}


def _save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> Path:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
