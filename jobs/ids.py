"""Ids that sort by the time they were made."""

from __future__ import annotations

import secrets
import time

_BASE32 = "0123456789abcdefghjkmnpqrstvwxyz"


def sortable_id(prefix: str) -> str:
    """`prefix_` and 26 characters: 52 bits of microseconds, 78 of chance."""
    number = (time.time_ns() // 1000) << 78 | secrets.randbits(78)
    return f"{prefix}_" + "".join(_BASE32[number >> shift & 31] for shift in range(125, -1, -5))
