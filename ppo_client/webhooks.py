"""Webhooks: managing endpoints, and checking what a receiver is sent."""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jobs.webhook_signing import signature
from jobs.webhook_views import (
    DeliveryView,
    NewWebhookView,
    WebhookMessageView,
    WebhookSecretView,
    WebhookView,
)
from ppo_client.errors import ClientError
from ppo_client.pages import pages
from ppo_client.transport import Transport

TOLERANCE_SECONDS = 300
_ROOT = "/v1/webhooks"


class SignatureMismatch(ClientError):
    """The message was not sent by who knows the secret, or long ago: refuse it with 4xx."""


def verify(
    body: bytes,
    headers: Mapping[str, str],
    secret: str | Sequence[str],
    *,
    tolerance_seconds: float = TOLERANCE_SECONDS,
) -> dict[str, Any]:
    """For receivers: the message in a request, once its signature is found good.

    `body` are the bytes as they came. `secret` may be several, for the time of a rotation. A message may come twice:
    what was done under a `webhook-id` must not be done again.

    Raises:
        SignatureMismatch: no good signature, or a timestamp further than `tolerance_seconds` from now.
    """
    given = {name.lower(): value for name, value in headers.items()}
    message_id, stamp = given.get("webhook-id", ""), given.get("webhook-timestamp", "")
    if not message_id or not (stamp.isascii() and stamp.isdecimal() and len(stamp) < 16):
        raise SignatureMismatch("the headers webhook-id and webhook-timestamp are missing or broken")
    if abs(time.time() - int(stamp)) > tolerance_seconds:
        raise SignatureMismatch("the message is too old, or a clock is wrong")
    good = [signature(one, message_id, int(stamp), body) for one in ([secret] if isinstance(secret, str) else secret)]
    sent = given.get("webhook-signature", "").split(" ")
    if not any(hmac.compare_digest(ours.encode(), theirs.encode()) for ours in good for theirs in sent):
        raise SignatureMismatch("no signature of the message is good")
    message: dict[str, Any] = json.loads(body)
    return message


class Webhooks:
    """`client.webhooks`: the endpoints of the caller. Errors are those of PPOClient's methods."""

    def __init__(self, http: Transport) -> None:
        self._http = http

    def add(self, url: str, **settings: Any) -> NewWebhookView:
        """Make an endpoint; `secret` in the answer is shown only here.

        `settings` may hold event_types, description, all_jobs, enabled.
        """
        answer = self._http.json("POST", _ROOT, body={"url": url, **settings})
        return NewWebhookView.model_validate(answer)

    def get(self, webhook_id: str) -> WebhookView:
        """An endpoint as it is now."""
        return WebhookView.model_validate(self._http.json("GET", f"{_ROOT}/{webhook_id}"))

    def list(self) -> Iterator[WebhookView]:
        """All endpoints, newest first; pages are fetched as they are needed."""
        return pages(self._http, _ROOT, WebhookView, {})

    def update(self, webhook_id: str, **changes: Any) -> WebhookView:
        """Change url, event_types, description, all_jobs or enabled; the rest stays."""
        return WebhookView.model_validate(self._http.json("PATCH", f"{_ROOT}/{webhook_id}", body=changes))

    def remove(self, webhook_id: str) -> None:
        """Remove an endpoint with its log."""
        self._http.empty("DELETE", f"{_ROOT}/{webhook_id}")

    def rotate_secret(self, webhook_id: str) -> WebhookSecretView:
        """Make a new secret; for a day the one before signs too."""
        return WebhookSecretView.model_validate(self._http.json("POST", f"{_ROOT}/{webhook_id}/rotate-secret"))

    def test(self, webhook_id: str, *, timeout_seconds: float = 20.0) -> DeliveryView | None:
        """Send a test message and wait for its first attempt; None if there was none in time."""
        answer = self._http.json("POST", f"{_ROOT}/{webhook_id}/test")
        message_id = WebhookMessageView.model_validate(answer).message_id
        until = time.monotonic() + timeout_seconds
        while time.monotonic() < until:
            found = next(self.deliveries(webhook_id, message_id=message_id), None)
            if found is not None:
                return found
            time.sleep(0.2)
        return None

    def deliveries(self, webhook_id: str, *, message_id: str | None = None) -> Iterator[DeliveryView]:
        """Delivery attempts, newest first; pages are fetched as they are needed."""
        params = {"message_id": message_id} if message_id else {}
        return pages(self._http, f"{_ROOT}/{webhook_id}/deliveries", DeliveryView, params)

    def redeliver(self, webhook_id: str, delivery_id: str) -> str:
        """Send the message of a delivery again; returns the message's id, which stays the same."""
        answer = self._http.json("POST", f"{_ROOT}/{webhook_id}/deliveries/{delivery_id}/redeliver")
        return WebhookMessageView.model_validate(answer).message_id
