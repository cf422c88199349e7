"""What lies in a folder of a model or an adapter, checked before a library opens its files by itself. Torch-free.

transformers follows links, and its files name other files: a folder under a root could lead to any file of the machine,
and what is in that into a checkpoint for download. The check is for what lies there; a root that users can change while
a run starts is the operator's to avoid.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ppo_engine.sources import SourceError

MAX_SETTINGS_BYTES = 64 << 20
"""Largest config.json and the like."""
MAX_COUNT = 10_000
"""Most layers, experts or labels of a model: an object is made of each before any weight is read."""

_INDICES = "*.index.json"
_CONFIG, _ADAPTER_CONFIG = "config.json", "adapter_config.json"
_TEMPLATES = "additional_chat_templates"
_COUNT = re.compile(r"(?:layers?|labels|experts|blocks)$")
_ATTENTION = re.compile(r"[a-z0-9_]+")
_PEFT_SETTINGS = ("megatron_config", "corda_config", "eva_config", "lora_ga_config")
"""Settings of adapters that have PEFT import modules or read files that they name."""


def check_folder(folder: Path, roots: Sequence[Path]) -> None:
    """Refuse a folder that leads out of `roots`, or has a library fetch code or build without measure.

    Raises:
        SourceError: the message says which file and why.
    """
    inside = [root.resolve() for root in roots]
    try:
        for path in _entries(folder):
            _check_entry(path, inside)
        for path in folder.glob(_INDICES):
            _check_index(path)
        _check_config(folder / _CONFIG)
        _check_adapter(folder / _ADAPTER_CONFIG)
    except (OSError, RuntimeError) as error:  # RuntimeError: a link that leads to itself, or JSON without a floor
        raise SourceError(f"the folder `{folder.name}` cannot be read: {type(error).__name__}") from error


def _entries(folder: Path) -> Iterator[Path]:
    """What libraries look at: the files of the folder itself, and its chat templates."""
    yield from folder.iterdir()
    yield from (folder / _TEMPLATES).glob("*")


def _check_entry(path: Path, inside: Sequence[Path]) -> None:
    real = path.resolve()
    if not any(real.is_relative_to(root) for root in inside):
        raise SourceError(f"`{path.name}` in the folder `{path.parent.name}` leads out of the roots of this service")
    if real.exists() and not (real.is_file() or real.is_dir()):
        raise SourceError(f"`{path.name}` in the folder `{path.parent.name}` is no ordinary file")


def _check_index(path: Path) -> None:
    """The index of weights in several files names them: they must lie beside it."""
    names = _settings(path).get("weight_map")
    for name in names.values() if isinstance(names, dict) else ():
        if not isinstance(name, str) or name in ("", ".", "..") or re.search(r"[/\\\x00]", name):
            raise SourceError(f"{path.name} names weights that are not beside it: `{str(name)[:80]}`")


def _check_config(path: Path) -> None:
    for key, value in _pairs(_settings(path)):
        # Another name than transformers' own is a repository of the hub, whose code would be fetched and run.
        if key.endswith("attn_implementation") and value is not None and not _is_own_attention(value):
            raise SourceError(f"config.json asks for attention from elsewhere: `{str(value)[:80]}`")
        if _COUNT.search(key) and isinstance(value, int) and value > MAX_COUNT:
            raise SourceError(f"`{key[:80]}` in config.json is larger than {MAX_COUNT}")


def _is_own_attention(value: Any) -> bool:
    parts = value.values() if isinstance(value, dict) else [value]
    return all(part is None or (isinstance(part, str) and _ATTENTION.fullmatch(part)) for part in parts)


def _check_adapter(path: Path) -> None:
    settings = _settings(path)
    found = next((name for name in _PEFT_SETTINGS if settings.get(name)), None)
    if found is not None:
        raise SourceError(f"`{found}` in {path.name} is not supported")


def _settings(path: Path) -> dict[str, Any]:
    """The object in a JSON file; an empty one where it is missing or damaged, which libraries say themselves."""
    if not path.is_file():
        return {}
    if path.stat().st_size > MAX_SETTINGS_BYTES:
        raise SourceError(f"{path.name} is larger than {MAX_SETTINGS_BYTES} bytes")
    try:
        value = json.loads(path.read_bytes())
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _pairs(value: Any) -> Iterator[tuple[str, Any]]:
    """Every name and its value, however deep."""
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, dict):
            yield from item.items()
            left.extend(item.values())
        elif isinstance(item, list):
            left.extend(item)
