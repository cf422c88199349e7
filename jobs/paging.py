"""Page tokens: the id that a page ended with, for lists in the order of their ids."""

from __future__ import annotations

import base64
import binascii
import re

from jobs.errors import InvalidArgument


def token_behind(last_id: str) -> str:
    """The token of the page behind `last_id`."""
    return base64.urlsafe_b64encode(last_id.encode()).decode().rstrip("=")


def id_before(token: str, pattern: re.Pattern[str]) -> str:
    """The id that the page before ended with; raises InvalidArgument unless it is like `pattern`."""
    try:
        last_id = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode("ascii")
    except (binascii.Error, ValueError):
        last_id = ""
    if not pattern.fullmatch(last_id):
        raise InvalidArgument("page_token is not one that this service gave out")
    return last_id
