"""Webhooks, their outbox and their log

Why: owners want to be told what happens to their jobs instead of asking for it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_JSON = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")
_PENDING = sa.text("outcome IS NULL")


def _webhook_id() -> sa.Column[str]:
    return sa.Column("webhook_id", sa.String(40), sa.ForeignKey("webhooks.id", ondelete="CASCADE"), nullable=False)


def _time(name: str, *, nullable: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def upgrade() -> None:
    op.create_table(
        "webhooks",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("owner_id", sa.String(128), nullable=False),
        sa.Column("url", sa.String(2048), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("event_types", _JSON, nullable=False),
        sa.Column("all_jobs", sa.Boolean(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("disable_reason", sa.Text()),
        _time("failing_since", nullable=True),
        sa.Column("salt", sa.String(64), nullable=False),
        sa.Column("previous_salt", sa.String(64)),
        _time("previous_until", nullable=True),
        _time("create_time"),
        _time("update_time"),
        sa.UniqueConstraint("owner_id", "url", name=op.f("uq_webhooks_owner_id_url")),
    )
    op.create_index("ix_webhooks_owner_id_id", "webhooks", ["owner_id", "id"])
    op.create_table(
        "webhook_messages",
        sa.Column("id", sa.String(40), primary_key=True),
        _webhook_id(),
        sa.Column("type", sa.String(64), nullable=False),
        sa.Column("data", _JSON, nullable=False),
        sa.Column("attempts", sa.BigInteger(), nullable=False),
        _time("next_attempt_time"),
        _time("due_since"),
        sa.Column("outcome", sa.String(16)),
        _time("create_time"),
    )
    op.create_index("ix_webhook_messages_webhook_id_id", "webhook_messages", ["webhook_id", "id"])
    op.create_index(
        "ix_webhook_messages_due",
        "webhook_messages",
        ["next_attempt_time"],
        postgresql_where=_PENDING,
        sqlite_where=_PENDING,
    )
    message_id = sa.ForeignKey("webhook_messages.id", ondelete="CASCADE")
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", sa.String(40), primary_key=True),
        _webhook_id(),
        sa.Column("message_id", sa.String(40), message_id, nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        _time("time"),
        sa.Column("status", sa.BigInteger()),
        sa.Column("error", sa.Text()),
        sa.Column("duration_seconds", sa.Double(), nullable=False),
        sa.Column("answer", sa.Text(), nullable=False),
    )
    op.create_index("ix_webhook_deliveries_webhook_id_id", "webhook_deliveries", ["webhook_id", "id"])
    op.create_index("ix_webhook_deliveries_message_id", "webhook_deliveries", ["message_id"])


def downgrade() -> None:
    op.drop_table("webhook_deliveries")
    op.drop_table("webhook_messages")
    op.drop_table("webhooks")
