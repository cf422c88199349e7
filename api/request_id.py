"""The id that ties an answer to the log, for both doors."""

from __future__ import annotations

import re
import uuid

from jobs.mask import mask

HEADER = "x-request-id"

_USABLE = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def request_id(given: str | None) -> str:
    """The caller's id where it is fit for a log line and no key by mistake, else a new one."""
    usable = given is not None and _USABLE.fullmatch(given) and mask(given) == given
    return given if given is not None and usable else uuid.uuid4().hex
