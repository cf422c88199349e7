"""Tell where a job comes from

Why: a job may be another one's spec again, or go on from another one's checkpoint, which stays until it was taken over.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("parent_job_id", "pinned_job_id"):
        op.add_column("jobs", sa.Column(name, sa.String(40), nullable=True))
    op.add_column("jobs", sa.Column("parent_step", sa.BigInteger(), nullable=True))
    json = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
    op.add_column("jobs", sa.Column("inherited", json, nullable=True))
    pinned = sa.text("pinned_job_id IS NOT NULL")
    op.create_index("ix_jobs_pinned_job_id", "jobs", ["pinned_job_id"], postgresql_where=pinned, sqlite_where=pinned)


def downgrade() -> None:
    op.drop_index("ix_jobs_pinned_job_id", table_name="jobs")
    for name in ("inherited", "parent_step", "pinned_job_id", "parent_job_id"):
        op.drop_column("jobs", name)
