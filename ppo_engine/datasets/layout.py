"""Which files of a folder make which split, by the rules of the `datasets` library.

What README.md declares counts, or else the names of folders and files. Nothing is downloaded, and no code is run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from ppo_engine.config.data import PromptFolder
from ppo_engine.datasets.card import choose, read_configs
from ppo_engine.datasets.faults import unknown, unusable
from ppo_engine.datasets.rows import READERS, TEXT
from ppo_engine.datasets.snapshots import below, snapshot
from ppo_engine.sources import SourceError, open_file, resolve

MAX_ENTRIES = 20_000
"""Most files and folders below a folder of prompts."""
_MAX_DEPTH = 16
_MAX_SCRIPT_BYTES = 1 << 20
_NO_DATA = frozenset(
    {"README.md", "config.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"}
)
"""What describes a dataset."""
_SHARD = re.compile(r"data/(?P<split>\w+(?:\.\w+)*)-\d{5}-of-\d{5}[^/]*\.[^/]*")
_WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_SPLITS = {
    split: re.compile(rf"(?:^|[-._ 0-9])(?:{'|'.join(words)})(?:$|[-._ 0-9])") for split, words in _WORDS.items()
}


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file with rows."""

    name: str
    """As people know it: from the folder on."""
    path: Path
    """Where it really is, under a root."""
    stamp: tuple[int, int, int]
    """Inode, size in bytes, time of the last change in nanoseconds."""

    @property
    def ending(self) -> str:
        """What says how it is read."""
        return _ending(self.name)


def data_files(folder: PromptFolder, roots: Sequence[Path]) -> list[DataFile]:
    """The files of the split, in the order of their names.

    Raises:
        FolderUnusable: there is no such folder, config or split, or one of its files cannot be used.
    """
    try:
        base = resolve(folder.path, roots)
        if not base.is_dir():
            raise unusable(f"`{folder.path[:200]}` is not a folder")
        base = snapshot(base, folder.revision, roots)
        splits = _splits(base, folder.config, roots)
        names = splits.get(folder.split)
        if not names:
            raise unknown("split", "split", folder.split, sorted(splits))
        _check_kinds(names)
        return [_located(base, name, roots) for name in names]
    except SourceError as error:
        raise unusable(str(error)) from error
    except OSError as error:
        raise unusable(f"`{folder.path[:200]}` cannot be read: {type(error).__name__}") from error


def _located(base: Path, name: str, roots: Sequence[Path]) -> DataFile:
    path = below(base, name, roots)
    found = path.stat()
    return DataFile(name, path, (found.st_ino, found.st_size, found.st_mtime_ns))


def _ending(name: str) -> str:
    return Path(name).suffix.lower()


def _check_kinds(names: Sequence[str]) -> None:
    endings = {_ending(name): name for name in names}
    for ending, name in endings.items():
        if ending not in READERS:
            raise unusable(f"`{name}` is none of {', '.join(READERS)}")
    if len(endings) > 1:
        first, second = list(endings.values())[:2]
        raise unusable(f"`{first}` and `{second}` are of different kinds: a split has one")


# --- splits -------------------------------------------------------------------------------------------------------


def _splits(base: Path, config: str | None, roots: Sequence[Path]) -> dict[str, list[str]]:
    """The names of the files of every split."""
    names = sorted(_walk(base))
    declared = []
    if (base / "README.md").is_file():
        with open_file(below(base, "README.md", roots)) as card:
            declared = read_configs(card)
    if declared:
        return _declared(names, declared, config)
    if config is not None:
        advice = "leave `config` out, or name the folder below"
        raise unusable(f"no README.md declares configs here: {advice}", part="config", code="unknown_config")
    _refuse_scripts(base, names, roots)
    data = _data(names)
    if not data:
        raise unusable(f"the folder has no file of prompts ({', '.join(READERS)})")
    return _by_name(data)


def _declared(names: Sequence[str], configs: list[object], wanted: str | None) -> dict[str, list[str]]:
    config = choose(configs, wanted)
    prefix = f"{config.data_dir}/" if config.data_dir else ""
    below = [name[len(prefix) :] for name in names if name.startswith(prefix)]
    if not config.patterns:
        found = _by_name(_data(below))
    else:
        found = {split: _matching(below, patterns) for split, patterns in config.patterns.items()}
    for split, files in found.items():
        if not files:
            raise unusable(f"the files that README.md names for the split `{split}` are not there", part="split")
    return {split: [prefix + name for name in files] for split, files in found.items()}


def _matching(names: Sequence[str], patterns: Sequence[str]) -> list[str]:
    plain = set(patterns) & set(names)
    globs = [pattern.split("/") for pattern in patterns if re.search(r"[*?\[]", pattern)]
    data = [name for name in names if Path(name).name not in _NO_DATA]
    return [name for name in data if name in plain or any(_matches(name.split("/"), glob) for glob in globs)]


def _matches(parts: list[str], pattern: list[str]) -> bool:
    """Whether a path matches, part by part; `**` stands for any number of parts."""
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_matches(parts[skip:], pattern[1:]) for skip in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


def _data(names: Sequence[str]) -> list[str]:
    """The files with rows. Text files are rows only where there is nothing better: licences are text, too."""
    data = [name for name in names if _ending(name) in READERS and Path(name).name not in _NO_DATA]
    return [name for name in data if _ending(name) != TEXT] or data


def _by_name(names: Sequence[str]) -> dict[str, list[str]]:
    """Splits by the first rule that finds any: shards in `data/`, names of folders, names of files, all are `train`."""
    shards: dict[str, list[str]] = {}
    for name in names:
        if shard := _SHARD.fullmatch(name):
            shards.setdefault(shard["split"], []).append(name)
    return shards or _by_words(names, folders=True) or _by_words(names, folders=False) or {"train": list(names)}


def _by_words(names: Sequence[str], *, folders: bool) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in names:
        *above, own = name.split("/")
        for split, words in _SPLITS.items():
            if any(words.search(part) for part in (above if folders else [own])):
                found.setdefault(split, []).append(name)
    return found


# --- the folder ---------------------------------------------------------------------------------------------------


def _walk(base: Path) -> Iterator[str]:
    """The names of all files below, those left out that are hidden; folders that are links are not entered."""
    left, seen = [""], 0
    while left:
        inside = left.pop()
        with os.scandir(base / inside) as entries:
            for entry in entries:
                seen += 1
                if seen > MAX_ENTRIES:
                    raise unusable(f"the folder has more than {MAX_ENTRIES} files: name one below it")
                if entry.name.startswith((".", "__")):
                    continue
                name = f"{inside}{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    if name.count("/") < _MAX_DEPTH:
                        left.append(f"{name}/")
                elif not entry.is_dir():
                    yield name


def _refuse_scripts(base: Path, names: Sequence[str], roots: Sequence[Path]) -> None:
    """A script beside the data says how to read them: without it the rows would be others."""
    for name in names:
        if "/" not in name and name.endswith(".py"):
            with open_file(below(base, name, roots)) as script:
                if b"Builder" not in script.read(_MAX_SCRIPT_BYTES):
                    continue
            advice = "convert it to Parquet, declare `configs` in README.md, or name a folder below that holds the data"
            detail = f"`{name}` is a script that loads the dataset, and no code of a dataset is run: {advice}"
            raise unusable(detail, code="dataset_script")
