"""Text of other people on a terminal: models, servers and colleagues must not steer it."""

from __future__ import annotations


def visible(text: str) -> str:
    """`text` with its line ends and tabs, every other control character (ESC among them) shown as U+FFFD."""
    return "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in text)
