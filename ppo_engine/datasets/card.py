"""The configs that a dataset's README.md declares in its YAML header, as the hub writes and `datasets` reads them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import yaml

from ppo_engine.datasets.faults import unknown, unusable

_MAX_HEADER_BYTES = 4 << 20
_MAX_CONFIGS_CHARACTERS = 128 << 10
"""Of the part that is parsed."""
_MAX_PATTERNS = 10_000
_READ = frozenset({"config_name", "data_files", "data_dir", "default"})
_WITHOUT_EFFECT = frozenset({"description", "version", "features", "drop_labels", "drop_metadata"})
_END = re.compile(r"^[^\s#-]", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class CardConfig:
    """One config: which files make which split."""

    data_dir: str
    """The folder below the dataset's that it is about; empty for all of it."""
    patterns: dict[str, list[str]]
    """Patterns of files by split; empty where the names of the files say it."""


def read_configs(file: BinaryIO) -> list[Any]:
    """The configs of a README.md, as YAML gives them; none where it has no such header.

    Raises:
        FolderUnusable: a header that cannot be read.
    """
    block = _configs_block(_header(file))
    if len(block) > _MAX_CONFIGS_CHARACTERS:
        raise unusable(f"`configs` in README.md is longer than {_MAX_CONFIGS_CHARACTERS} characters")
    try:
        found = yaml.safe_load(block)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise unusable("`configs` in README.md is not YAML that can be read") from error
    configs = found.get("configs") if isinstance(found, dict) else None
    return [item for item in configs if isinstance(item, dict)] if isinstance(configs, list) else []


def choose(configs: list[Any], wanted: str | None) -> CardConfig:
    """The config `wanted`, or the one that is taken without a name.

    Raises:
        FolderUnusable: there is no such config, several and none is the default, or it cannot be read.
    """
    names = [str(item.get("config_name", "default"))[:256] for item in configs]
    if wanted is not None:
        if wanted not in names:
            raise unknown("config", "config", wanted, names)
        return _config(configs[names.index(wanted)], wanted)
    default = [index for index, item in enumerate(configs) if item.get("default") is True]
    default = default or [index for index, name in enumerate(names) if name == "default" or len(names) == 1]
    if not default:
        raise unknown("config", "config", "default", names)
    return _config(configs[default[0]], names[default[0]])


def _header(file: BinaryIO) -> str:
    """The text between the two lines `---` at the beginning."""
    if file.readline(1000).decode("utf-8-sig", "replace").strip() != "---":
        return ""
    text = file.read(_MAX_HEADER_BYTES).decode("utf-8", "replace").replace("\r\n", "\n")
    header, end, _ = f"\n{text}\n".partition("\n---\n")
    if not end:
        raise unusable(f"the header of README.md does not end within {_MAX_HEADER_BYTES} bytes")
    return header + "\n"


def _configs_block(header: str) -> str:
    """The lines of `configs` alone: beside it stand long lists of features that nobody here needs."""
    _, found, rest = header.partition("\nconfigs:")
    end = _END.search(rest, rest.find("\n") + 1)
    return f"configs:{rest[: end.start()] if end else rest}" if found else ""


def _config(item: dict[Any, Any], name: str) -> CardConfig:
    odd = [str(key)[:64] for key in item if key not in _READ | _WITHOUT_EFFECT]
    if odd:
        raise unusable(f"the config `{name}` in README.md sets `{odd[0]}`, which is not supported", part="config")
    patterns: dict[str, list[str]] = {}
    for count, (split, pattern) in enumerate(_patterns(item.get("data_files")), start=1):
        if count > _MAX_PATTERNS:
            raise unusable(f"the config `{name}` in README.md names more than {_MAX_PATTERNS} files", part="config")
        patterns.setdefault(split, []).append(_sound(pattern))
    return CardConfig(_sound(item.get("data_dir") or "."), patterns)


def _patterns(files: Any) -> Iterator[tuple[str, Any]]:
    """Split and pattern of all that `data_files` may be: a pattern, some, or some by split."""
    for item in files if isinstance(files, list) else [] if files is None else [files]:
        if isinstance(item, dict):
            paths = item.get("path")
            for path in paths if isinstance(paths, list) else [paths]:
                yield str(item.get("split", "train"))[:256], path
        else:
            yield "train", item


def _sound(pattern: Any) -> str:
    """A path or pattern below the folder, without a `./` before it."""
    parts = pattern.split("/") if isinstance(pattern, str) else [".."]
    if ".." in parts or parts[0] == "" or "\x00" in pattern or "://" in pattern or parts.count("**") > 2:
        raise unusable(f"README.md names files that are not below its folder: `{str(pattern)[:80]}`")
    return "/".join(part for part in parts if part not in ("", "."))
