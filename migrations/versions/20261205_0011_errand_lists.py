"""List errands by kind, state and job, and cancel them

Why: whoever asked for something long wants to see it and to be able to end it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

LISTS = {
    "ix_errands_owner_id_id": ["owner_id", "id"],
    "ix_errands_owner_id_kind_id": ["owner_id", "kind", "id"],
    "ix_errands_owner_id_outcome_id": ["owner_id", "outcome", "id"],
    "ix_errands_job_id_id": ["job_id", "id"],
}


def upgrade() -> None:
    op.add_column("errands", sa.Column("job_id", sa.String(40), nullable=True))
    op.add_column("errands", sa.Column("cancel_request_time", sa.DateTime(timezone=True), nullable=True))
    outcome = sa.Column("outcome", sa.String(16), server_default=sa.text("'open'"), nullable=False)
    op.add_column("errands", outcome)
    op.execute("UPDATE errands SET outcome = 'failed' WHERE error IS NOT NULL")
    op.execute("UPDATE errands SET outcome = 'succeeded' WHERE answer IS NOT NULL")
    for name, columns in LISTS.items():
        op.create_index(name, "errands", columns)


def downgrade() -> None:
    for name in LISTS:
        op.drop_index(name, "errands")
    for column in ("outcome", "cancel_request_time", "job_id"):
        op.drop_column("errands", column)
