"""The files that a spec names must be there when it is submitted, under the operator's roots."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from jobs.errors import Problem
from jobs.folder_use import folder_problems
from jobs.plain import Loc, pointer
from jobs.problems import shown
from jobs.spec import JobSpec, invalid_spec
from ppo_engine.config import ModelSource, RewardComponent
from ppo_engine.folders import check_folder
from ppo_engine.sources import SourceError, resolve


def check_sources(spec: JobSpec, roots: Sequence[Path], others: Sequence[Problem] = ()) -> None:
    """Raise InvalidSpec with every path that cannot be used, and the problems of its `others`: datasets and hosts."""
    places = (("model", _models(spec)), ("adapter", _adapters(spec)), ("file", _files(spec)))
    problems = [*others, *(problem for kind, found in places for problem in _unusable(kind, found, roots))]
    problems += folder_problems(spec, roots)
    if problems:
        raise invalid_spec(problems)


def reward_problems(rewards: Sequence[RewardComponent], roots: Sequence[Path]) -> list[Problem]:
    """Every reward model that is not there, as a problem at `/rewards/…`."""
    return list(_unusable("model", _reward_models(rewards), roots))


def _unusable(kind: str, found: Iterable[tuple[Loc, str]], roots: Sequence[Path]) -> Iterator[Problem]:
    for loc, path in found:
        if detail := _fault(path, roots, kind):
            yield Problem(pointer=pointer(loc), code="source_unusable", detail=detail, given=shown(path))


def _models(spec: JobSpec) -> Iterator[tuple[Loc, str]]:
    """Place and path of every model that is not on the hub."""
    model = spec.model
    yield from _local(("model", "policy"), model.policy)
    yield from _local(("model", "reference", "source"), model.reference.source if model.reference else None)
    separate = model.value.separate
    yield from _local(("model", "value", "separate", "source"), separate.source if separate else None)
    yield from _reward_models(spec.rewards)


def _reward_models(rewards: Sequence[RewardComponent]) -> Iterator[tuple[Loc, str]]:
    for index, reward in enumerate(rewards):
        if reward.model is not None:
            yield from _local(("rewards", index, "model", "source"), reward.model.source)


def _adapters(spec: JobSpec) -> Iterator[tuple[Loc, str]]:
    yield from _local(("model", "adapter"), spec.model.adapter)


def _local(loc: Loc, source: ModelSource | None) -> Iterator[tuple[Loc, str]]:
    if source is not None and source.path is not None:
        yield (*loc, "path"), source.path


def _files(spec: JobSpec) -> Iterator[tuple[Loc, str]]:
    """Place and path of every file of prompts or texts."""
    for loc, prompts in spec.prompt_sets():
        if prompts.file is not None:
            yield (*loc, "file", "path"), prompts.file.path


_SETTINGS = {"model": "config.json", "adapter": "adapter_config.json"}
"""The file that a folder of each kind must hold."""


def _fault(path: str, roots: Sequence[Path], kind: str) -> str:
    try:
        found = resolve(path, roots)
        if kind == "file" or (kind == "model" and found.suffix == ".gguf"):
            return "" if found.is_file() else f"`{shown(path)}` is not a file"
        if not (found / _SETTINGS[kind]).is_file():
            return f"`{shown(path)}` is not a folder of a {kind}: it has no {_SETTINGS[kind]}"
        check_folder(found, roots)
    except (SourceError, OSError) as error:
        return str(error) if isinstance(error, SourceError) else f"`{shown(path)}` cannot be read"
    return ""
