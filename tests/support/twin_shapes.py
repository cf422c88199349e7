"""Compares what the two doors promise: JSON schemas of the OpenAPI document with messages of the proto."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

Schema = dict[str, Any]

STRUCT = "google.protobuf.Struct"
TIMESTAMP = "google.protobuf.Timestamp"
_ANY_VALUE = "google.protobuf.Value"
_TYPES = {
    "string": {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_ENUM, FieldDescriptor.TYPE_BYTES},
    "integer": {FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_INT64},
    "number": {FieldDescriptor.TYPE_DOUBLE},
    "boolean": {FieldDescriptor.TYPE_BOOL},
}


def answer_differences(document: Schema, schema: Schema, answer: Descriptor) -> Iterator[str]:
    """Where an answer's JSON and its message differ, beside the wrapping: messages name their content."""
    walk = _Walk(document)
    schema = walk.resolved(schema)
    properties, fields = schema.get("properties", {}), list(answer.fields)
    lists = [found for found in fields if found.is_repeated and found.message_type is not None]
    if set(properties) == {"items", "next_page_token"}:
        yield from walk.field(properties["items"], lists[0], answer.name) if lists else ["has no list of messages"]
        if "next_page_token" not in answer.fields_by_name:
            yield f"{answer.name} has no next_page_token"
    elif schema.get("type") == "array":
        yield from walk.field(schema, fields[0], answer.name)
    elif not properties:
        yield from walk.field(schema, fields[0], answer.name) if fields else []
    else:
        inner = [f.message_type for f in fields if f.message_type is not None and not f.is_repeated]
        whole = set(properties) <= set(answer.fields_by_name) or not inner
        yield from walk.message(schema, answer if whole else inner[0], answer.name)


class _Walk:
    """Field by field through both."""

    def __init__(self, document: Schema) -> None:
        self._schemas = document["components"]["schemas"]

    def resolved(self, schema: Schema) -> Schema:
        while "$ref" in schema:
            schema = self._schemas[schema["$ref"].rsplit("/", 1)[1]]
        return schema

    def message(self, schema: Schema, message: Descriptor, where: str) -> Iterator[str]:
        ours, theirs = schema["properties"], message.fields_by_name
        yield from (f"{where}.{name} is only in JSON" for name in sorted(set(ours) - set(theirs)))
        yield from (f"{where}.{name} is only in the proto" for name in sorted(set(theirs) - set(ours)))
        for name in sorted(set(ours) & set(theirs)):
            yield from self.field(ours[name], theirs[name], f"{where}.{name}")

    def field(self, schema: Schema, field: FieldDescriptor, where: str) -> Iterator[str]:
        kinds = [kind for kind in schema.get("anyOf", [schema]) if kind.get("type") != "null"]
        nullable = len(kinds) < len(schema.get("anyOf", []))
        schema = self.resolved(kinds[0])
        if field.is_repeated:
            yield from self._many(schema, field, where)
            return
        if field.message_type is None and nullable != field.has_presence:
            yield f"{where} can be absent only in {'JSON' if nullable else 'the proto'}"
        yield from self._one(schema, field, where)

    def _many(self, schema: Schema, field: FieldDescriptor, where: str) -> Iterator[str]:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            values = schema.get("additionalProperties")
            if not isinstance(values, dict):
                yield f"{where} is a map only in the proto"
            else:
                yield from self._one(self.resolved(values), field.message_type.fields_by_name["value"], where)
        elif schema.get("type") != "array":
            yield f"{where} is a list only in the proto"
        else:
            yield from self._one(self.resolved(schema["items"]), field, where)

    def _one(self, schema: Schema, field: FieldDescriptor, where: str) -> Iterator[str]:
        if field.message_type is None:
            if field.type not in _TYPES.get(schema.get("type", ""), ()):
                yield f"{where} has another type: {schema.get('type')} in JSON"
            return
        name = field.message_type.full_name
        if "properties" in schema:
            yield from self.message(schema, field.message_type, where)
        elif name == TIMESTAMP:
            if schema.get("format") != "date-time":
                yield f"{where} is a time only in the proto"
        elif schema.get("type", "object") != "object":
            yield f"{where} is a message only in the proto"
        elif name not in (STRUCT, _ANY_VALUE, "ppo.v1.JobSpec"):
            yield f"{where} has fields only in the proto"
