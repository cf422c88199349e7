"""Quotas of datasets, and what each takes on disk

Why: one owner must not fill the disk that all share.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("datasets", sa.Column("stored_bytes", sa.BigInteger(), nullable=True))
    for column in ("max_datasets", "max_stored_bytes"):
        op.add_column("owner_quotas", sa.Column(column, sa.BigInteger(), nullable=True))


def downgrade() -> None:
    for column in ("max_stored_bytes", "max_datasets"):
        op.drop_column("owner_quotas", column)
    op.drop_column("datasets", "stored_bytes")
