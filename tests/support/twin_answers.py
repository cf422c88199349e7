"""Compares what the two doors answered: the JSON of one with the message of the other, field by field."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from tests.support.twin_shapes import STRUCT, TIMESTAMP


def differences(answer: Any, message: Message, ignored: Sequence[str] = ()) -> list[str]:
    """Where they differ, but for the wrapping: messages name their content, and pages call it `items`."""
    fields = {field.name: field for field in message.DESCRIPTOR.fields}
    repeated = [field for field in fields.values() if field.is_repeated]
    if isinstance(answer, dict) and set(answer) == {"items", "next_page_token"}:
        token = getattr(message, "next_page_token", None) or None
        differ = (
            [] if token == answer["next_page_token"] else [f"next_page_token: {answer['next_page_token']}, {token}"]
        )
        return [*differ, *_field(answer["items"], repeated[0], message, repeated[0].name)]
    if isinstance(answer, list):
        return list(_field(answer, repeated[0], message, repeated[0].name))
    if set(answer) <= set(fields):
        return list(_message(answer, message, "", ignored))
    content = next(field for field in message.DESCRIPTOR.fields if field.message_type is not None)
    inner = getattr(message, content.name)
    if content.message_type.full_name == STRUCT:
        return list(_one(answer, content, inner, content.name))
    return list(_message(answer, inner, content.name, ignored))


def _message(answer: dict[str, Any], message: Message, where: str, ignored: Sequence[str] = ()) -> Iterator[str]:
    names = {field.name for field in message.DESCRIPTOR.fields}
    yield from (f"{where}.{name} is only in JSON" for name in answer if name not in names)
    for field in message.DESCRIPTOR.fields:
        if field.name not in ignored:
            yield from _field(answer.get(field.name), field, message, f"{where}.{field.name}")


def _field(ours: Any, field: FieldDescriptor, message: Message, where: str) -> Iterator[str]:
    theirs = getattr(message, field.name)
    if field.is_repeated and field.message_type is not None and field.message_type.GetOptions().map_entry:
        if (ours or {}) != dict(theirs):
            yield f"{where}: {ours} and {dict(theirs)}"
    elif field.is_repeated:
        if len(ours or ()) != len(theirs):
            yield f"{where}: {len(ours or ())} and {len(theirs)} of them"
        for number, (one, other) in enumerate(zip(ours or (), theirs, strict=False)):
            yield from _one(one, field, other, f"{where}[{number}]")
    elif field.has_presence and not message.HasField(field.name):
        if ours is not None:
            yield f"{where}: {ours} and nothing"
    elif ours is None and field.has_presence:
        yield f"{where}: nothing and {theirs}"
    else:
        yield from _one(ours, field, theirs, where)


def _one(ours: Any, field: FieldDescriptor, theirs: Any, where: str) -> Iterator[str]:
    if field.message_type is None:
        plain = _enum_word(field, theirs) if field.type == FieldDescriptor.TYPE_ENUM else theirs
        if ours != plain:
            yield f"{where}: {ours!r} and {plain!r}"
    elif field.message_type.full_name == TIMESTAMP:
        if datetime.fromisoformat(ours) != theirs.ToDatetime(tzinfo=UTC):
            yield f"{where}: {ours} and {theirs.ToJsonString()}"
    elif field.message_type.full_name == STRUCT:
        if ours != json_format.MessageToDict(theirs):
            yield f"{where} differs"
    else:
        yield from _message(ours, theirs, where)


def _enum_word(field: FieldDescriptor, number: int) -> str:
    """`JOB_STATE_QUEUED` as JSON writes it: `queued`."""
    names = [value.name for value in field.enum_type.values]
    prefix = names[0].removesuffix("UNSPECIFIED")
    name: str = field.enum_type.values_by_number[number].name
    return name.removeprefix(prefix).lower()
