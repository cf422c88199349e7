"""Reading models from where a spec says they are: only safetensors weights, never code from a model's folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from ppo_engine.config import ModelSource
from ppo_engine.errors import ModelUnavailable
from ppo_engine.models import LanguageModel
from ppo_engine.sources import SourceError, resolve


def load_language_model(source: ModelSource, roots: Sequence[Path]) -> LanguageModel:
    """Load a causal language model in fp32 from a folder under `roots` or from the hub.

    Raises:
        ModelUnavailable: not found, not a causal model, weights missing or not in safetensors.
    """
    where, options = _locate(source, roots)
    model, report = _load(
        lambda: AutoModelForCausalLM.from_pretrained(
            where,
            dtype=torch.float32,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            **options,
        ),
        where,
    )
    missing = sorted(report["missing_keys"])
    if missing:
        raise ModelUnavailable(f"{where}: weights are missing, for example `{missing[0]}` ({len(missing)} in all)")
    return LanguageModel(model.eval())


def load_tokenizer(source: ModelSource, roots: Sequence[Path]) -> PreTrainedTokenizerBase:
    """Load the tokenizer that belongs to a model.

    Raises:
        ModelUnavailable: not found.
    """
    where, options = _locate(source, roots)
    tokenizer: PreTrainedTokenizerBase = _load(
        lambda: AutoTokenizer.from_pretrained(where, trust_remote_code=False, **options), where
    )
    return tokenizer


def _locate(source: ModelSource, roots: Sequence[Path]) -> tuple[str, dict[str, Any]]:
    if source.hub is not None:
        return source.hub, {"revision": source.revision} if source.revision else {}
    try:
        folder = resolve(source.path or "", roots)
    except SourceError as error:
        raise ModelUnavailable(str(error)) from error
    if not (folder / "config.json").is_file():
        raise ModelUnavailable(f"{source.path} has no config.json")
    return str(folder), {"local_files_only": True}


def _load(load: Callable[[], Any], where: str) -> Any:
    try:
        return load()
    except (OSError, ValueError, RuntimeError, KeyError, ImportError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelUnavailable(f"{where} cannot be loaded: {reason}") from error
