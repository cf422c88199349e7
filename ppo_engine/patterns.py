"""Regular expressions that users write: checked when a spec is read, and searched within a time limit. Torch-free."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import regex

SEARCH_SECONDS = 1.0
"""Longest search in one text: a pattern that backtracks for ever must not hang the run."""


class PatternTimeout(Exception):
    """A search took too long."""


def compile_pattern(pattern: str) -> Any:
    """Compile a pattern of the `regex` package, which has everything of `re` and more.

    Raises:
        ValueError: it is not a pattern.
    """
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


@lru_cache(maxsize=256)
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
