"""What a receiver of webhooks does, written from the text of Standard Webhooks and not from our code."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jobs.db import Database
from jobs.dispatch import DueMessage, Patience, claim_due
from tests.support.http_api import PEPPER
from worker.settings import WorkerSettings

PATIENCE = Patience(first_retry_seconds=60, retry_seconds=3600, disable_seconds=7200)


def genuine(headers: Mapping[str, str], body: bytes, secret: str) -> bool:
    """Whether one of the signatures is that of the secret."""
    key = base64.b64decode(secret.split("_", 1)[1])
    sent = {name.lower(): value for name, value in headers.items()}
    content = b".".join([sent["webhook-id"].encode(), sent["webhook-timestamp"].encode(), body])
    good = base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
    return f"v1,{good}" in sent["webhook-signature"].split(" ")


def told(body: bytes) -> tuple[str, str, int]:
    """Type, job and number of the event that a message tells."""
    message: dict[str, Any] = json.loads(body)
    return message["type"], message["data"]["job"]["id"], message["data"]["event"]["seq"]


def claim(
    db: Database, *, limit: int = 100, each: int = 100, hold_seconds: float = 60, **busy: int
) -> list[DueMessage]:
    """Messages that are due."""
    return claim_due(db, limit=limit, busy=busy, each=each, hold_seconds=hold_seconds, pepper=PEPPER)


def courier_settings(home: Path, database_url: str, **values: Any) -> WorkerSettings:
    """A sender that looks often and may call this machine."""
    given = {
        "webhook_hosts": ["127.0.0.1"],
        "webhook_poll_seconds": 0.05,
        "webhook_first_retry_seconds": 0.05,
        **values,
    }
    return WorkerSettings(home=home, database_url=database_url, key_pepper=PEPPER, **given)
