"""Webhooks as their owners see them. Times are UTC."""

from __future__ import annotations

from datetime import datetime

from jobs.views import View


class WebhookView(View):
    """An endpoint, without its secret."""

    id: str
    url: str
    event_types: list[str]
    description: str
    all_jobs: bool
    enabled: bool
    disable_reason: str | None
    failing_since: datetime | None
    create_time: datetime
    update_time: datetime


class NewWebhookView(WebhookView):
    """A new endpoint with its secret, which is shown here and never again."""

    secret: str


class WebhookSecretView(View):
    """A new secret, shown here and never again."""

    secret: str
    previous_until: datetime
    """Until then messages are signed with the secret before it too."""


class WebhookMessageView(View):
    """A message that is on its way."""

    message_id: str


class DeliveryView(View):
    """One attempt to deliver a message."""

    id: str
    message_id: str
    type: str
    attempt: int
    time: datetime
    status: int | None
    """HTTP status; None where there was no answer."""
    error: str | None
    duration_seconds: float
    answer: str
    """The first bytes of the answer's body."""
    outcome: str | None
    """How the message stands now: `delivered`, `given_up`, `dropped`; None while it is still tried."""
