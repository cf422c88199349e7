"""Reads a JSON body with limits: type, size, time, and no JSON that two parsers would read differently."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from fastapi import Request

from api.errors import BodyTimeout, BodyTooLarge, MalformedBody, UnsupportedMediaType
from api.http.deps import Ctx
from jobs.errors import Problem
from ppo_engine import strict_json

_JSON = "application/json"
_PATCH = "application/merge-patch+json"


async def json_object(request: Request, context: Ctx) -> dict[str, Any]:
    """The body as one JSON object; raises as `_object`."""
    return await _object(request, context, _JSON)


async def merge_patch(request: Request, context: Ctx) -> dict[str, Any]:
    """The body as a JSON merge patch, also where it is called plain JSON; raises as `_object`."""
    return await _object(request, context, _PATCH, _JSON)


async def _object(request: Request, context: Ctx, *types: str) -> dict[str, Any]:
    """The body as one JSON object of one of these media types.

    Raises:
        UnsupportedMediaType: not JSON, or compressed.
        BodyTooLarge: by its declared or its real length.
        BodyTimeout: it came too slowly.
        MalformedBody: not one JSON object in strict JSON.
    """
    _check_type(request, types)
    try:
        async with asyncio.timeout(context.settings.body_seconds):
            body = await _read(request, context.settings.max_body_bytes)
    except TimeoutError as error:
        raise BodyTimeout(f"the body must arrive within {context.settings.body_seconds:g} seconds") from error
    return parse_object(body)


def _check_type(request: Request, types: Sequence[str]) -> None:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in types:
        raise UnsupportedMediaType(f"Content-Type must be {' or '.join(types)}, not `{media_type or 'absent'}`")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise UnsupportedMediaType(f"send the body as it is, not as `{encoding}`")


async def _read(request: Request, limit: int) -> bytes:
    refused = BodyTooLarge(f"the body may have {limit} bytes")
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > limit:
        raise refused
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise refused
    return bytes(body)


def parse_object(body: bytes) -> dict[str, Any]:
    """Parse strict JSON: UTF-8, no NaN or Infinity, no name twice in one object, an object at the top.

    Raises:
        MalformedBody: anything else; the message says where.
    """
    try:
        text = body.decode("utf-8")
        value = strict_json.loads(text)
    except RecursionError as error:
        raise MalformedBody("the JSON is nested too deeply") from error
    except ValueError as error:
        raise MalformedBody(f"the body is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise MalformedBody(
            "the body must be a JSON object",
            problems=[Problem(pointer="", code="not_an_object", detail=f"this is a {type(value).__name__}")],
        )
    return value
