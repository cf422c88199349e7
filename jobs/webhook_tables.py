"""Rows of webhooks: endpoints, the outbox of messages to them, and the log of deliveries."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ForeignKey, Index, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from jobs.clock import db_time
from jobs.tables import Base

_PENDING = sa.text("outcome IS NULL")


def _now() -> Mapped[datetime]:
    return mapped_column(insert_default=db_time())


def _webhook_id() -> Mapped[str]:
    return mapped_column(String(40), ForeignKey("webhooks.id", ondelete="CASCADE"))


class Webhook(Base):
    """An endpoint of an owner: where to post, and which events."""

    __tablename__ = "webhooks"
    __table_args__ = (UniqueConstraint("owner_id", "url"), Index("ix_webhooks_owner_id_id", "owner_id", "id"))

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    owner_id: Mapped[str] = mapped_column(String(128))
    url: Mapped[str] = mapped_column(String(2048))
    description: Mapped[str]
    event_types: Mapped[list[str]]
    all_jobs: Mapped[bool]
    """False: only jobs whose spec names this endpoint."""
    enabled: Mapped[bool]
    disable_reason: Mapped[str | None]
    """Why the service disabled it; None where its owner did."""
    failing_since: Mapped[datetime | None]
    """The first failed delivery since the last good one."""
    salt: Mapped[str] = mapped_column(String(64))
    """The signing secret is made from this and the pepper, and is itself stored nowhere."""
    previous_salt: Mapped[str | None] = mapped_column(String(64))
    previous_until: Mapped[datetime | None]
    """So long messages are also signed with the secret before the last rotation."""
    create_time: Mapped[datetime] = _now()
    update_time: Mapped[datetime] = _now()


class WebhookMessage(Base):
    """One message to one endpoint, written in the transaction of the event that it tells: the outbox."""

    __tablename__ = "webhook_messages"
    __table_args__ = (
        Index("ix_webhook_messages_webhook_id_id", "webhook_id", "id"),
        Index("ix_webhook_messages_due", "next_attempt_time", postgresql_where=_PENDING, sqlite_where=_PENDING),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    """Sorts by time; the receiver sees it as `webhook-id`, the same at every attempt."""
    webhook_id: Mapped[str] = _webhook_id()
    type: Mapped[str] = mapped_column(String(64))
    data: Mapped[dict[str, Any]]
    attempts: Mapped[int] = mapped_column(insert_default=0)
    """Counted when one begins, so that it is also the fence: only the newest attempt may say how it went."""
    next_attempt_time: Mapped[datetime] = _now()
    due_since: Mapped[datetime] = _now()
    """When it was first due, or sent again by its owner: retries end a fixed time after this."""
    outcome: Mapped[str | None] = mapped_column(String(16))
    """None: still to be delivered."""
    create_time: Mapped[datetime] = _now()


class WebhookDelivery(Base):
    """One attempt to deliver a message."""

    __tablename__ = "webhook_deliveries"
    __table_args__ = (
        Index("ix_webhook_deliveries_webhook_id_id", "webhook_id", "id"),
        Index("ix_webhook_deliveries_message_id", "message_id"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    webhook_id: Mapped[str] = _webhook_id()
    message_id: Mapped[str] = mapped_column(String(40), ForeignKey("webhook_messages.id", ondelete="CASCADE"))
    attempt: Mapped[int]
    time: Mapped[datetime] = _now()
    status: Mapped[int | None]
    """HTTP status; None where there was no answer."""
    error: Mapped[str | None]
    duration_seconds: Mapped[float]
    answer: Mapped[str]
    """The first bytes of the answer's body, as text."""


# A literal, not a parameter: a planner that does not know the value cannot see that the partial index fits.
IS_PENDING = WebhookMessage.outcome.is_(None)
