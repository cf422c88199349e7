"""Ids that sort by the time they were made."""

from __future__ import annotations

import secrets
import time

_BASE32 = "0123456789abcdefghjkmnpqrstvwxyz"


def sortable_id(prefix: str) -> str:
    """`prefix_` and 26 characters: 52 bits of microseconds, 78 of chance."""
    return f"{prefix}_{_base32((time.time_ns() // 1000) << 78 | secrets.randbits(78))}"


def least_id(prefix: str, seconds_ago: float) -> str:
    """The least id that can have been made since then."""
    return f"{prefix}_{_base32(int((time.time() - seconds_ago) * 1e6) << 78)}"


def _base32(number: int) -> str:
    return "".join(_BASE32[number >> shift & 31] for shift in range(125, -1, -5))
