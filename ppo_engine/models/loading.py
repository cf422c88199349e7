"""Reading models from where a spec says they are: only safetensors weights, never code from a model's folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from ppo_engine.config import ModelSource
from ppo_engine.errors import ModelUnavailable
from ppo_engine.folders import check_folder
from ppo_engine.models.policy import LanguageModel
from ppo_engine.sources import SourceError, resolve

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_FILES = ["*.json", "*.jinja", "*.txt", "*.model", "model.safetensors", "model-*.safetensors", "value_head.safetensors"]
"""What is fetched of a model on the hub: no code, and no pickles."""


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
    folder = _folder(source, roots, [ADAPTER_CONFIG, ADAPTER_WEIGHTS])
    for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
        if not (folder / name).is_file():
            raise ModelUnavailable(f"the adapter `{source.path or source.hub}` has no {name}")
    return folder


def locate(source: ModelSource, roots: Sequence[Path]) -> tuple[str, dict[str, Any]]:
    """Name and options for `from_pretrained`: a local folder, checked. From the hub, the folder is fetched first.

    A name of the hub is never given to `from_pretrained`, which would rather take a folder of that name where the
    process happens to run, and lets an index or an adapter's config lead it to other folders.

    Raises:
        ModelUnavailable: not found, or not a model's folder.
    """
    folder = _folder(source, roots, _FILES)
    if not (folder / "config.json").is_file():
        raise ModelUnavailable(f"{source.path or source.hub} has no config.json")
    return str(folder), {"local_files_only": True}


def _folder(source: ModelSource, roots: Sequence[Path], files: list[str]) -> Path:
    try:
        if source.hub is None:
            folder = resolve(source.path or "", roots)
        else:
            folder, roots = _fetched(source.hub, source.revision, files)
        if folder.is_dir():
            check_folder(folder, roots)
    except SourceError as error:
        raise ModelUnavailable(str(error)) from error
    return folder


def _fetched(hub: str, revision: str | None, files: list[str]) -> tuple[Path, list[Path]]:
    """The folder of a hub model's files, and that of its cache: one has links to the other."""
    fetch = partial(snapshot_download, hub, revision=revision, allow_patterns=files, ignore_patterns=["*/*"])
    folder = Path(load_checked(fetch, hub))
    return folder, [folder.parents[1]]


def load_checked(load: Callable[[], Any], where: str) -> Any:
    """What `load` returns; raises ModelUnavailable with the reason if it cannot."""
    try:
        return load()
    except (OSError, ValueError, RuntimeError, KeyError, ImportError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelUnavailable(f"{where} cannot be loaded: {reason}") from error
