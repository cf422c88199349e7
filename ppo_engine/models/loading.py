"""Reading models from where a spec says they are: only safetensors weights, never code from a model's folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from ppo_engine.config import ModelSource
from ppo_engine.errors import ModelUnavailable
from ppo_engine.models.policy import LanguageModel
from ppo_engine.sources import SourceError, resolve

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def load_language_model(source: ModelSource, roots: Sequence[Path]) -> LanguageModel:
    """Load a causal language model in fp32 from a folder under `roots` or from the hub.

    Raises:
        ModelUnavailable: not found, not a causal model, weights missing or not in safetensors.
    """
    where, options = locate(source, roots)
    model, report = load_checked(
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
    where, options = locate(source, roots)
    tokenizer: PreTrainedTokenizerBase = load_checked(
        lambda: AutoTokenizer.from_pretrained(where, trust_remote_code=False, **options), where
    )
    return tokenizer


def locate_adapter(source: ModelSource, roots: Sequence[Path]) -> Path:
    """The local folder of a PEFT adapter; from the hub, its config and safetensors weights are fetched.

    Raises:
        ModelUnavailable: not found, not an adapter, or its weights are not safetensors.
    """
    if source.hub is not None:
        files = [ADAPTER_CONFIG, ADAPTER_WEIGHTS]
        hub = source.hub
        folder = Path(load_checked(lambda: snapshot_download(hub, revision=source.revision, allow_patterns=files), hub))
    else:
        folder = _resolve(source, roots)
    for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
        if not (folder / name).is_file():
            raise ModelUnavailable(f"the adapter `{source.path or source.hub}` has no {name}")
    return folder


def locate(source: ModelSource, roots: Sequence[Path]) -> tuple[str, dict[str, Any]]:
    """Name and options for `from_pretrained`.

    Raises:
        ModelUnavailable: not found, or not a model's folder.
    """
    if source.hub is not None:
        return source.hub, {"revision": source.revision} if source.revision else {}
    folder = _resolve(source, roots)
    if not (folder / "config.json").is_file():
        raise ModelUnavailable(f"{source.path} has no config.json")
    return str(folder), {"local_files_only": True}


def _resolve(source: ModelSource, roots: Sequence[Path]) -> Path:
    try:
        return resolve(source.path or "", roots)
    except SourceError as error:
        raise ModelUnavailable(str(error)) from error


def load_checked(load: Callable[[], Any], where: str) -> Any:
    """What `load` returns; raises ModelUnavailable with the reason if it cannot."""
    try:
        return load()
    except (OSError, ValueError, RuntimeError, KeyError, ImportError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelUnavailable(f"{where} cannot be loaded: {reason}") from error
