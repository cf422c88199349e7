"""The id that ties an answer to the log, for both doors."""

from __future__ import annotations

import re
import uuid

HEADER = "x-request-id"

_USABLE = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def request_id(given: str | None) -> str:
    """The caller's id where it is fit for a log line, else a new one."""
    return given if given is not None and _USABLE.fullmatch(given) else uuid.uuid4().hex
