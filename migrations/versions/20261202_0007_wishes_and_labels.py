"""Let owners stop and pause jobs, and change their labels

Why: like cancel, stop and pause are wishes that a worker hears. A job's labels can differ from those of its spec, which
stays as it was submitted. An attempt tells how far it came.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("stop_request_time", "pause_request_time"):
        op.add_column("jobs", sa.Column(name, sa.DateTime(timezone=True), nullable=True))
    json = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
    op.add_column("jobs", sa.Column("labels", json, nullable=True))
    op.add_column("job_attempts", sa.Column("end_step", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("job_attempts", "end_step")
    for name in ("labels", "pause_request_time", "stop_request_time"):
        op.drop_column("jobs", name)
