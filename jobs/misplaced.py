"""Where a field that is not known in one place belongs: in another section, or under another name than TRL's."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from functools import lru_cache

from pydantic import BaseModel

from jobs.repair import bare, model_at
from ppo_engine import trl

_MOST_PLACES = 3
"""A name that more sections have (`name`, `path`) says nothing about where it belongs."""
_DEEPEST = 5


def belongs_at(document: type[BaseModel], name: str) -> tuple[str, ...]:
    """Dotted paths in `document` that a misplaced field `name` most likely meant; empty where that cannot be told."""
    known = {field: paths for field, paths in _places(document).items() if len(paths) <= _MOST_PLACES}
    if name in known:
        return known[name]
    ours = tuple(path for path in _TRL.get(name, ()) if model_at(document, tuple(path.split("."))[:-1]) is not None)
    if ours:
        return ours
    return tuple(
        path for near in difflib.get_close_matches(name[:128], known, n=1, cutoff=0.73) for path in known[near]
    )


_TRL = {
    field.name: tuple(field.ours.split(", "))
    for field in (*trl.ARGUMENTS, *trl.FIELDS)
    if field.ours and "." in field.ours
}


@lru_cache(maxsize=16)
def _places(document: type[BaseModel]) -> dict[str, tuple[str, ...]]:
    """Every name below the first level, and the paths that it is at; items of lists are left out."""
    found: dict[str, tuple[str, ...]] = {}
    for name, path in _walk(document, "", 1):
        found[name] = (*found.get(name, ()), path)
    return found


def _walk(model: type[BaseModel], above: str, depth: int) -> Iterator[tuple[str, str]]:
    for name, field in model.model_fields.items():
        yield name, above + name
        inner = bare(field.annotation)
        if depth < _DEEPEST and isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _walk(inner, f"{above}{name}.", depth + 1)
