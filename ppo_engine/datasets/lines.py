"""Prompts as they were written: what a row must have to be one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ppo_engine.config.data import MAX_PROMPT_CHARACTERS


@dataclass(frozen=True, slots=True)
class Line:
    """One prompt as it was written: its text, and all of the row it came from."""

    text: str
    """The prompt; of a conversation, its last message."""
    messages: tuple[Mapping[str, str], ...] = ()
    """The conversation, where the line has one."""
    record: Mapping[str, Any] = field(default_factory=dict)


def line_of(record: Any, field: str, *, chat: bool) -> Line:
    """The prompt in the field `field` of a row; with `chat` it may be a list of messages.

    Raises:
        ValueError: there is none; the message says why.
    """
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")
    if field not in record:
        raise ValueError(f"no field `{field}`")
    value = record[field]
    if isinstance(value, list) and chat:
        messages = tuple(_message(field, index, item) for index, item in enumerate(value))
        if not messages or messages[-1]["role"] == "assistant":
            raise ValueError(f"field `{field}` does not end with a message for the model to answer")
        return Line(messages[-1]["content"], messages, record)
    if not isinstance(value, str):
        wanted = "neither a string nor a list of messages" if chat else "not a string"
        raise ValueError(f"field `{field}` is {wanted}")
    if not value.strip():
        raise ValueError(f"field `{field}` is empty")
    return Line(checked(value), record=record)


def checked(text: str) -> str:
    """`text`, if it can be a prompt; raises ValueError."""
    if len(text) > MAX_PROMPT_CHARACTERS:
        raise ValueError(f"longer than {MAX_PROMPT_CHARACTERS} characters")
    text.encode()  # JSON can spell half of a surrogate pair, which no tokenizer takes
    return text


def reason(error: ValueError) -> str:
    """What one of these errors says."""
    return "half of a surrogate pair" if isinstance(error, UnicodeEncodeError) else str(error)


def _message(field: str, index: int, item: Any) -> Mapping[str, str]:
    if not (isinstance(item, dict) and isinstance(item.get("role"), str) and isinstance(item.get("content"), str)):
        raise ValueError(f"message {index} of `{field}` has no `role` and `content`")
    return {"role": item["role"], "content": checked(item["content"])}
