"""Regular expressions that users write: checked when a spec is read, and searched within a time limit. Torch-free."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import regex

SEARCH_SECONDS = 1.0
"""Longest search in one text: a pattern that backtracks for ever must not hang the run."""


MAX_PARTS = 10_000
"""Largest pattern when its counts are written out. `regex` does write them out: the 13 characters `a{1000000000}` of a
spec would fill the memory of the process that only reads it."""

_COUNT = re.compile(r"(?P<of_group>[)\s])?\{(?P<least>\d+)(?:,\d*)?\}")
_VERBOSE = re.compile(r"\(\?[A-Za-z0-9-]*x")
_FOLDING = re.compile(r"\(\?[A-Za-z0-9-]*f")
_FOLDED_TEXTS = 100
"""So many texts one character class can stand for where `ss` is as good as `ß` (flag `f`)."""
_SPACED_COUNT = re.compile(r"\{[^}]*[\s#]")


class PatternTimeout(Exception):
    """A search took too long."""


def compile_pattern(pattern: str) -> Any:
    """Compile a pattern of the `regex` package, which has everything of `re` and more.

    Raises:
        ValueError: it is not a pattern.
    """
    if parts_of(pattern) > MAX_PARTS:
        raise ValueError(f"bad pattern: its counts make it longer than {MAX_PARTS} parts")
    try:
        return _compiled(pattern)
    except regex.error as error:
        raise ValueError(f"bad pattern: {error}") from None
    except RecursionError:
        raise ValueError("bad pattern: nested too deeply") from None


def checked_pattern(pattern: str) -> str:
    """The same text, if it compiles; else ValueError."""
    compile_pattern(pattern)
    return pattern


def parts_of(pattern: str) -> int:
    """How many parts a pattern has when compiled, at most; found without compiling it.

    Counts behind groups are multiplied as if all groups were nested, and space before a count may hide a group.

    Raises:
        ValueError: a verbose pattern with counts that cannot be read so.
    """
    if _VERBOSE.search(pattern) and _SPACED_COUNT.search(pattern):
        raise ValueError("bad pattern: in a verbose pattern braces must not hold space or a comment")
    parts, copies = len(pattern), 1
    texts = _FOLDED_TEXTS if _FOLDING.search(pattern) else 1
    for count in _COUNT.finditer(pattern):
        least = max(1, int(count["least"]))
        if count["of_group"] is None:
            parts += least * texts
        else:
            copies *= least
    return parts * copies


@lru_cache(maxsize=64)
def _compiled(pattern: str) -> Any:
    return regex.compile(pattern)


def found(pattern: Any, text: str) -> bool:
    """Whether a compiled pattern occurs anywhere in `text`.

    Raises:
        PatternTimeout: after SEARCH_SECONDS.
    """
    return next(matches(pattern, text), None) is not None


def matches(pattern: Any, text: str) -> Iterator[Any]:
    """All matches, from the left.

    Raises:
        PatternTimeout: the search took more than SEARCH_SECONDS in all.
    """
    try:
        yield from pattern.finditer(text, timeout=SEARCH_SECONDS)
    except TimeoutError:
        raise PatternTimeout(f"the pattern took more than {SEARCH_SECONDS:g} s on one response") from None
