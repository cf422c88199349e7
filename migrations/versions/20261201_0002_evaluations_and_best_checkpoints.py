"""Tell evaluation samples and the best checkpoint

Why: runs are evaluated on fixed prompts, and keep their best checkpoints beside the newest.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("best_checkpoint_step", sa.BigInteger(), nullable=True))
    op.add_column("job_checkpoints", sa.Column("score", sa.Double(), nullable=True))
    evaluation = sa.Column("evaluation", sa.Boolean(), server_default=sa.false(), nullable=False)
    op.add_column("job_samples", evaluation)


def downgrade() -> None:
    op.drop_column("job_samples", "evaluation")
    op.drop_column("job_checkpoints", "score")
    op.drop_column("jobs", "best_checkpoint_step")
