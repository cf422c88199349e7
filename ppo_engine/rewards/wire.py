"""What goes over the wire between a worker and a reward server, and what counts as which failure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from ppo_engine.errors import RewardFailed
from ppo_engine.rewards.exchange import Exchange

TOO_MANY_REQUESTS = 429


class TryAgain(Exception):
    """An attempt failed in a way that may pass."""

    def __init__(self, reason: str, pause_seconds: float = 0.0) -> None:
        super().__init__(reason)
        self.pause_seconds = pause_seconds


class Refused(Exception):
    """The server will not take this request, however often it is sent."""


def request_body(exchanges: Sequence[Exchange]) -> bytes:
    """{"prompts": [...], "responses": [...], "records": [...]}."""
    content = {
        "prompts": [exchange.prompt for exchange in exchanges],
        "responses": [exchange.response for exchange in exchanges],
        "records": [dict(exchange.record) for exchange in exchanges],
    }
    return json.dumps(content, allow_nan=False).encode()


def check_status(answer: httpx.Response) -> None:
    """Raise TryAgain or Refused for what is no answer to read."""
    status = answer.status_code
    if status == TOO_MANY_REQUESTS or status >= 500:
        raise TryAgain(f"it answered {status}", retry_after(answer.headers.get("Retry-After", "")))
    if answer.has_redirect_location:
        raise Refused(f"it answered {status}, a redirect; those are not followed")
    if status != httpx.codes.OK:
        raise Refused(f"it answered {status}")
    if (coding := answer.headers.get("Content-Encoding", "identity")) != "identity":
        raise Refused(f"it answered in the content coding {coding[:20]}, which was not asked for")


def retry_after(value: str) -> float:
    """Seconds in a Retry-After header, which may be a date (RFC 9110, 10.2.3); 0 without one."""
    if value.isascii() and value.isdigit():
        return float(value[:9])
    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return 0.0


def read_scores(label: str, answer: bytes, count: int) -> list[float | None]:
    """The scores of {"scores": [...]}: numbers (JSON as Python reads it: NaN too) and nulls.

    Raises:
        RewardFailed: anything else, or another number of scores than `count`.
    """
    try:
        scores: Any = json.loads(answer)["scores"]
    except (ValueError, TypeError, KeyError, RecursionError):
        scores = None
    if not isinstance(scores, list):
        raise RewardFailed(f'{label} answered something else than {{"scores": [...]}}')
    if len(scores) != count:
        raise RewardFailed(f"{label} returned {len(scores)} scores for {count} responses")
    for index, score in enumerate(scores):
        if isinstance(score, bool) or not isinstance(score, int | float | None):
            raise RewardFailed(f"{label} returned a {type(score).__name__} instead of a number at index {index}")
    return scores
