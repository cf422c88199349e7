"""Create datasets

Why: prompts are uploaded and named by an id; jobs that need a dataset keep it from being deleted.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "datasets",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("owner_id", sa.String(length=128), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("format", sa.String(length=16), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("columns", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=False),
        sa.Column("create_time", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_datasets"),
        sa.UniqueConstraint("owner_id", "sha256", "format", name="uq_datasets_owner_id_sha256_format"),
    )
    op.create_index("ix_datasets_owner_id_id", "datasets", ["owner_id", "id"])
    op.create_table(
        "job_datasets",
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("dataset_id", sa.String(length=40), nullable=False),
        sa.ForeignKeyConstraint(
            ["dataset_id"], ["datasets.id"], name="fk_job_datasets_dataset_id_datasets", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_job_datasets_job_id_jobs", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "dataset_id", name="pk_job_datasets"),
    )
    op.create_index("ix_job_datasets_dataset_id", "job_datasets", ["dataset_id"])


def downgrade() -> None:
    op.drop_table("job_datasets")
    op.drop_table("datasets")
