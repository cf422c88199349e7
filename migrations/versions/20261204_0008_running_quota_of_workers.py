"""Let workers say how many jobs of one owner they run

Why: a job that waits for its owner's quota should say so, and it is the worker that holds it back.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("workers", sa.Column("max_running_jobs", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("workers", "max_running_jobs")
