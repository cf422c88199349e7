"""The files that a spec names must be there when it is submitted, under the operator's roots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from jobs.errors import Problem
from jobs.plain import Loc, pointer
from jobs.problems import shown
from jobs.spec import JobSpec, invalid_spec
from ppo_engine.sources import SourceError, resolve


def check_sources(spec: JobSpec, roots: Sequence[Path]) -> None:
    """Raise InvalidSpec with every path that cannot be used."""
    problems = [
        Problem(pointer=pointer(loc), code="source_unusable", detail=detail, given=shown(path))
        for loc, path, folder in _paths(spec)
        if (detail := _fault(path, roots, folder=folder))
    ]
    if problems:
        raise invalid_spec(problems)


def _paths(spec: JobSpec) -> Iterator[tuple[Loc, str, bool]]:
    """Place in the spec, path, and whether it is a folder."""
    if spec.model.policy.path is not None:
        yield ("model", "policy", "path"), spec.model.policy.path, True
    reference = spec.model.reference.source if spec.model.reference else None
    if reference is not None and reference.path is not None:
        yield ("model", "reference", "source", "path"), reference.path, True
    if spec.prompts.file is not None:
        yield ("prompts", "file", "path"), spec.prompts.file.path, False
    for index, reward in enumerate(spec.rewards):
        if reward.model is not None and reward.model.source.path is not None:
            yield ("rewards", index, "model", "source", "path"), reward.model.source.path, True


def _fault(path: str, roots: Sequence[Path], *, folder: bool) -> str:
    try:
        found = resolve(path, roots)
    except (SourceError, OSError) as error:
        return str(error) if isinstance(error, SourceError) else f"`{shown(path)}` cannot be read"
    if folder and not (found / "config.json").is_file():
        return f"`{shown(path)}` is not a model folder: it has no config.json"
    if not folder and not found.is_file():
        return f"`{shown(path)}` is not a file"
    return ""
