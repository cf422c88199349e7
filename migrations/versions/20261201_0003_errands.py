"""Errands, and which workers do them

Why: the front door has engine work done outside of jobs (reward previews, generation).
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "errands",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("owner_id", sa.String(128), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("queue", sa.String(63), nullable=False),
        sa.Column("request", JSON, nullable=False),
        sa.Column("tries", sa.BigInteger(), nullable=False),
        sa.Column("lease_token", sa.BigInteger(), nullable=False),
        sa.Column("worker_id", sa.String(255), nullable=True),
        sa.Column("lease_expire_time", TIME, nullable=True),
        sa.Column("answer", JSON, nullable=True),
        sa.Column("error", JSON, nullable=True),
        sa.Column("create_time", TIME, nullable=False),
        sa.Column("start_time", TIME, nullable=True),
        sa.Column("end_time", TIME, nullable=True),
        sa.Column("expire_time", TIME, nullable=False),
        sa.CheckConstraint(
            "(lease_expire_time IS NOT NULL) = (worker_id IS NOT NULL)", name=op.f("ck_errands_lease_iff_taken")
        ),
        sa.CheckConstraint("worker_id IS NULL OR end_time IS NULL", name=op.f("ck_errands_no_worker_after_end")),
        sa.CheckConstraint(
            "(end_time IS NOT NULL) = (answer IS NOT NULL OR error IS NOT NULL)",
            name=op.f("ck_errands_outcome_iff_ended"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_errands")),
    )
    _index("ix_errands_open", ["owner_id"], "end_time IS NULL")
    _index("ix_errands_waiting", ["queue", "create_time", "id"], "end_time IS NULL AND worker_id IS NULL")
    _index("ix_errands_lease_expire_time", ["lease_expire_time"], "worker_id IS NOT NULL")
    op.create_index("ix_errands_expire_time", "errands", ["expire_time"])
    op.add_column("workers", sa.Column("errands", sa.Boolean(), server_default=sa.true(), nullable=False))


def _index(name: str, columns: list[str], where: str) -> None:
    op.create_index(name, "errands", columns, postgresql_where=sa.text(where), sqlite_where=sa.text(where))


def downgrade() -> None:
    op.drop_column("workers", "errands")
    op.drop_table("errands")
