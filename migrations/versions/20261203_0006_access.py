"""Give keys scopes, names and an end; quotas; an audit log

Why: a key should allow no more than its bearer needs, owners share the machines, and somebody asks who did that.
Keys that exist keep what they could do: read, submit and control.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.add_column("api_keys", sa.Column("name", sa.String(64), server_default=sa.text("''"), nullable=False))
    scopes = sa.Column("scopes", sa.String(255), server_default=sa.text("'read submit control'"), nullable=False)
    op.add_column("api_keys", scopes)
    op.add_column("api_keys", sa.Column("expire_time", TIME, nullable=True))
    op.add_column("api_keys", sa.Column("last_use_time", TIME, nullable=True))
    op.create_index("ix_api_keys_owner_id_id", "api_keys", ["owner_id", "id"])
    op.create_table(
        "owner_quotas",
        sa.Column("owner_id", sa.String(128), nullable=False),
        sa.Column("max_running_jobs", sa.BigInteger(), nullable=True),
        sa.Column("max_queued_jobs", sa.BigInteger(), nullable=True),
        sa.Column("update_time", TIME, nullable=False),
        sa.PrimaryKeyConstraint("owner_id"),
    )
    _create_audit()


def _create_audit() -> None:
    op.create_table(
        "audit_entries",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("time", TIME, nullable=False),
        sa.Column("owner_id", sa.String(128), nullable=False),
        sa.Column("key_id", sa.String(40), nullable=True),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("target", sa.String(128), nullable=True),
        sa.Column("outcome", sa.String(64), nullable=False),
        sa.Column("request_id", sa.String(128), nullable=True),
        sa.Column("address", sa.String(64), nullable=True),
        sa.Column("detail", JSON, nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_audit_entries_owner_id_id", "audit_entries", ["owner_id", "id"])
    op.create_index("ix_audit_entries_target_id", "audit_entries", ["target", "id"])
    op.create_index("ix_audit_entries_time", "audit_entries", ["time"])


def downgrade() -> None:
    op.drop_table("audit_entries")
    op.drop_table("owner_quotas")
    op.drop_index("ix_api_keys_owner_id_id", "api_keys")
    for column in ("last_use_time", "expire_time", "scopes", "name"):
        op.drop_column("api_keys", column)
