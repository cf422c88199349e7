"""Bounds of request parameters, the same for both doors."""

from __future__ import annotations

import re
from collections.abc import Mapping

from jobs.errors import InvalidArgument, JobNotFound, Problem

MAX_PAGE_SIZE = 200
MAX_POINTS = 10_000
MIN_POINTS = 2
JOB_ID = r"^job_[0-9a-z]{1,64}$"


def job_id(text: str) -> str:
    """An id that can be looked up.

    Raises:
        JobNotFound: no job can have it.
    """
    if not re.fullmatch(JOB_ID, text):
        raise JobNotFound("there is no such job")
    return text


def bounded(name: str, value: int, *, default: int, least: int, most: int) -> int:
    """`default` for 0, which is how proto3 says absent; else drawn into the bounds.

    Raises:
        InvalidArgument: negative.
    """
    if value < 0:
        raise InvalidArgument(f"{name} must not be negative")
    return max(least, min(value or default, most))


def label_filters(pairs: Mapping[str, str]) -> dict[str, str]:
    """Labels that can be looked up.

    Raises:
        InvalidArgument: an empty key, or a NUL character, which no database stores.
    """
    problems = [
        Problem(
            pointer="/label", code="bad_format", detail="must be `key=value` without NUL characters", given=key[:63]
        )
        for key, value in pairs.items()
        if not key or "\x00" in key + value
    ]
    if problems:
        raise InvalidArgument("a label filter is not usable", problems=problems)
    return dict(pairs)
