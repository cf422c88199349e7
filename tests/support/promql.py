"""As much of PromQL as it takes to see which metrics and labels an expression names."""

from __future__ import annotations

import re
from dataclasses import dataclass

_STRING = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'')
_DURATION = re.compile(r"\[[^\]]*\]|\boffset\s+-?\w+")
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)\s*\{([^}]*)\}")
_LABEL = re.compile(r"([a-zA-Z_]\w*)\s*(?:=~|!~|!=|=)")
_NAME = re.compile(r"(?<![\w:.$])([a-zA-Z_:][\w:]*)(?!\s*\()(?![\w:])")
_WORDS = frozenset({"and", "or", "unless", "bool", "inf", "nan"})


@dataclass(frozen=True)
class Named:
    """What an expression names: metrics, labels in a metric's selector, and labels that results are grouped by."""

    metrics: frozenset[str]
    matched: frozenset[tuple[str, str]]
    grouped: frozenset[str]


def names(expression: str) -> Named:
    """Names in a PromQL expression, however it nests."""
    bare = _DURATION.sub("", _STRING.sub('""', expression))
    grouped = {label.strip() for group in _GROUPING.findall(bare) for label in group.split(",") if label.strip()}
    matched = {(metric, label) for metric, body in _SELECTOR.findall(bare) for label in _LABEL.findall(body)}
    rest = _GROUPING.sub(" ", re.sub(r"\{[^}]*\}", " ", bare))
    metrics = {name for name in _NAME.findall(rest) if name.lower() not in _WORDS}
    return Named(frozenset(metrics), frozenset(matched), frozenset(grouped))
