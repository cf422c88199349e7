"""Page tokens: where a page ended, for lists in a fixed order. Opaque to clients, and checked when they come back."""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import Any

from jobs.errors import InvalidArgument


def token_behind(last_id: str) -> str:
    """The token of the page behind `last_id`."""
    return base64.urlsafe_b64encode(last_id.encode()).decode().rstrip("=")


def id_before(token: str, pattern: re.Pattern[str]) -> str:
    """The id that the page before ended with; raises InvalidArgument unless it is like `pattern`."""
    last_id = _text(token)
    if not pattern.fullmatch(last_id):
        raise foreign_token()
    return last_id


def token_behind_number(kind: str, last: int) -> str:
    """The token of the page behind a number, in a list of `kind`."""
    return token_behind(f"{kind}_{last}")


def number_before(token: str, kind: str) -> int:
    """The number that the page before ended with; raises InvalidArgument unless the token is of a list of `kind`."""
    return int(id_before(token, re.compile(rf"{kind}_[0-9]{{1,18}}")).rpartition("_")[2])


def token_behind_values(values: list[Any]) -> str:
    """The token of the page behind a row with these values, for lists in an order that the caller chooses."""
    return token_behind(json.dumps(values, separators=(",", ":")))


def values_before(token: str) -> list[Any]:
    """The values of the row that the page before ended with; raises InvalidArgument. Their types are unchecked."""
    try:
        values = json.loads(_text(token))
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, list):
        raise foreign_token()
    return values


def foreign_token() -> InvalidArgument:
    """The refusal of a token that is not of this list."""
    return InvalidArgument("page_token is not one that this service gave out for this list")


def _text(token: str) -> str:
    """What a token says; empty where it says nothing."""
    try:
        return base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode("ascii")
    except (binascii.Error, ValueError):
        return ""
