"""GGUF files that a spec names: converted once per run directory, and loaded as the folders they become."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch

from ppo_engine.config import ModelConfig, ModelSource
from ppo_engine.errors import ModelUnavailable
from ppo_engine.models.gguf import convert
from ppo_engine.sources import SourceError, resolve

log = logging.getLogger(__name__)


def without_gguf(config: ModelConfig, roots: Sequence[Path], scratch: Path | None) -> ModelConfig:
    """The same models, with the folder of a converted copy in place of every .gguf file.

    Args:
        scratch: where the copies are made, and found again by a later attempt.

    Raises:
        ModelUnavailable: a file is not found or cannot be converted, or there is no `scratch`.
    """
    changes: dict[str, object] = {"policy": _folder(config.policy, roots, scratch)}
    if config.reference is not None and config.reference.source is not None:
        source = _folder(config.reference.source, roots, scratch)
        changes["reference"] = config.reference.model_copy(update={"source": source})
    separate = config.value.separate
    if separate is not None and separate.source is not None:
        critic = separate.model_copy(update={"source": _folder(separate.source, roots, scratch)})
        changes["value"] = config.value.model_copy(update={"separate": critic})
    return config.model_copy(update=changes)


def _folder(source: ModelSource, roots: Sequence[Path], scratch: Path | None) -> ModelSource:
    if source.path is None or not source.path.endswith(".gguf"):
        return source
    try:
        file = resolve(source.path, roots)
    except SourceError as error:
        raise ModelUnavailable(str(error)) from error
    if scratch is None:
        raise ModelUnavailable(f"`{source.path}` is a GGUF file, and there is no place to convert it to")
    folder = scratch / f"{file.stem}-{_state(file)}"
    if not folder.is_dir():
        log.info("converting %s", source.path)
        with suppress(FileExistsError):  # another process was faster
            convert(file, folder, torch.float32)
    return ModelSource(path=str(folder))


def _state(file: Path) -> str:
    """Tells one state of a file from another, without reading it."""
    stat = file.stat()
    return hashlib.sha256(f"{file} {stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()[:16]
