"""The key that makes a submit repeatable: HTTP's Idempotency-Key, gRPC's request_id."""

from __future__ import annotations

import re

from jobs.errors import InvalidArgument

_KEY = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,128}")


def from_header(header: str | None) -> str | None:
    """The key in a header; draft-ietf-httpapi-idempotency-key-header writes it in quotes, most clients without."""
    if header is None:
        return None
    quoted = len(header) >= 2 and header[0] == header[-1] == '"'
    return checked(header[1:-1] if quoted else header)


def checked(key: str) -> str:
    """The key itself.

    Raises:
        InvalidArgument: not 1 to 128 printable ASCII characters without spaces, quotes and backslashes.
    """
    if not _KEY.fullmatch(key):
        raise InvalidArgument(
            "an idempotency key is 1 to 128 printable ASCII characters without spaces, quotes and backslashes"
        )
    return key
