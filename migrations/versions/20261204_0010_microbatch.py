"""Keep the microbatch that a job goes on with after memory ran out

Why: half the microbatch needs less memory and changes no number. Every later attempt must use it, on whatever worker.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("microbatch_size", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("jobs", "microbatch_size")
