"""Takes secrets out of an engine's log, which the job's owner may read."""

from __future__ import annotations

import re
from collections.abc import Sequence

from jobs.mask import mask as mask_credentials

_MASK = "***"
_HUB_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{8,}")
# Not a bare `token`: a language model's logs are full of `pad_token: …`.
_ASSIGNMENT = re.compile(
    r"(?i)((?:\bpassw(?:or)?d|secret|api[_-]?key|(?:access|auth|api|hub)[_-]?token)[\"']?\s*[=:]\s*[\"']?)[^\s\"',;]{4,}"
)


def mask(text: str, secrets: Sequence[str] = ()) -> str:
    """Replace the given secrets, and whatever has the shape of one, by `***`."""
    for secret in secrets:
        text = text.replace(secret, _MASK)
    text = mask_credentials(_HUB_TOKEN.sub(_MASK, text))
    return _ASSIGNMENT.sub(rf"\1{_MASK}", text)
