"""What no log line and no error message may show."""

from __future__ import annotations

import re
from typing import Any

_API_KEY = re.compile(r"ppo_[A-Za-z0-9_-]{43}")
_WEBHOOK_SECRET = re.compile(r"whsec_[A-Za-z0-9+/=]{20,}")
_URL_PASSWORD = re.compile(r"(?<=://)([^/\s:@]*):[^/\s@]+@")
_BEARER = re.compile(r"(?i)\b(bearer|basic) [A-Za-z0-9._~+/=-]{8,}")


def mask(text: str) -> str:
    """Replace API keys, secrets of webhooks, passwords in URLs and authorization headers."""
    text = _API_KEY.sub("ppo_***", text)
    text = _WEBHOOK_SECRET.sub("whsec_***", text)
    text = _URL_PASSWORD.sub(r"\1:***@", text)
    return _BEARER.sub(r"\1 ***", text)


def mask_all(value: Any) -> Any:
    """The same for every text in a value, however deep; what is neither text nor plain becomes masked text."""
    match value:
        case str():
            return mask(value)
        case dict():
            return {mask_all(key): mask_all(item) for key, item in value.items()}
        case list() | tuple():
            return [mask_all(item) for item in value]
        case bool() | int() | float() | None:
            return value
    return mask(str(value))
