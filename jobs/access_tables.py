"""Rows of quotas and of the audit log."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Index, String
from sqlalchemy.orm import Mapped, mapped_column

from jobs.clock import db_time
from jobs.tables import Base


class OwnerQuota(Base):
    """What an administrator allows one owner, where that is not the default."""

    __tablename__ = "owner_quotas"

    owner_id: Mapped[str] = mapped_column(String(128), primary_key=True)
    max_running_jobs: Mapped[int | None]
    max_queued_jobs: Mapped[int | None]
    max_datasets: Mapped[int | None]
    max_stored_bytes: Mapped[int | None]
    update_time: Mapped[datetime] = mapped_column(insert_default=db_time())


class AuditEntry(Base):
    """A change that somebody made, or was refused. Written once, never changed."""

    __tablename__ = "audit_entries"
    __table_args__ = (
        Index("ix_audit_entries_owner_id_id", "owner_id", "id"),
        Index("ix_audit_entries_target_id", "target", "id"),
        Index("ix_audit_entries_time", "time"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    """Sorts by the time it was made."""
    time: Mapped[datetime] = mapped_column(insert_default=db_time())
    owner_id: Mapped[str] = mapped_column(String(128))
    """Who did it."""
    key_id: Mapped[str | None] = mapped_column(String(40))
    action: Mapped[str] = mapped_column(String(64))
    target: Mapped[str | None] = mapped_column(String(128))
    outcome: Mapped[str] = mapped_column(String(64))
    """`done`, or the code of the refusal."""
    request_id: Mapped[str | None] = mapped_column(String(128))
    address: Mapped[str | None] = mapped_column(String(64))
    detail: Mapped[dict[str, Any]]
