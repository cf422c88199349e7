"""Create the tables of jobs, their history, API keys and workers

Why: the first version of the service.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
TIME = sa.DateTime(timezone=True)
STATES = "queued", "running", "paused", "succeeded", "failed", "cancelled"


def upgrade() -> None:
    _create_jobs()
    _index_jobs()
    _create_labels_and_events()
    _create_attempts()
    _create_metrics_and_samples()
    _create_checkpoints()
    _create_keys_and_workers()


def downgrade() -> None:
    for table in ("workers", "api_keys", "job_checkpoints", "job_samples", "job_metrics"):
        op.drop_table(table)
    for table in ("job_attempts", "job_events", "job_labels", "jobs"):
        op.drop_table(table)


def _state() -> sa.Column[str]:
    kind = sa.Enum(*STATES, name="state", native_enum=False, create_constraint=True, length=16)
    return sa.Column("state", kind, nullable=False)


def _int(name: str, *, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=nullable)


def _time(name: str, *, nullable: bool = False) -> sa.Column[object]:
    return sa.Column(name, TIME, nullable=nullable)


def _json(name: str, *, nullable: bool = False) -> sa.Column[object]:
    return sa.Column(name, JSON, nullable=nullable)


def _text(name: str, length: int, *, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.String(length), nullable=nullable)


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        _text("id", 40),
        _text("owner_id", 128),
        _text("request_id", 255, nullable=True),
        _text("name", 128),
        _json("spec"),
        _text("spec_hash", 64),
        _text("queue", 63),
        _int("rank"),
        _int("max_attempts"),
        _state(),
        _text("phase", 32, nullable=True),
        _int("event_seq"),
        _int("attempt"),
        _int("failed_attempts"),
        _int("lease_token"),
        _text("worker_id", 255, nullable=True),
        _time("lease_expire_time", nullable=True),
        _time("not_before"),
        _time("next_wake_time"),
        _time("cancel_request_time", nullable=True),
        _int("step"),
        _int("steps_total"),
        sa.Column("seconds_per_step", sa.Double(), nullable=True),
        _json("latest_metrics"),
        _int("last_checkpoint_step", nullable=True),
        _text("stop_reason", 64, nullable=True),
        _json("error", nullable=True),
        _time("create_time"),
        _time("start_time", nullable=True),
        _time("end_time", nullable=True),
        _time("update_time"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("owner_id", "request_id"),
        sa.CheckConstraint(
            "(end_time IS NOT NULL) = (state IN ('cancelled', 'failed', 'succeeded'))", name="end_time_iff_terminal"
        ),
        sa.CheckConstraint("(lease_expire_time IS NOT NULL) = (state = 'running')", name="lease_iff_running"),
        sa.CheckConstraint("(worker_id IS NOT NULL) = (state = 'running')", name="worker_iff_running"),
        sa.CheckConstraint("failed_attempts <= max_attempts", name="attempts_within_max"),
        sa.CheckConstraint("step >= 0 AND step <= steps_total", name="step_within_total"),
    )


def _index_jobs() -> None:
    queued, running = sa.text("state = 'queued'"), sa.text("state = 'running'")
    op.create_index("ix_jobs_owner_id_id", "jobs", ["owner_id", "id"])
    op.create_index("ix_jobs_owner_id_state_id", "jobs", ["owner_id", "state", "id"])
    op.create_index("ix_jobs_state_next_wake_time", "jobs", ["state", "next_wake_time"])
    order = ["queue", "rank", "create_time", "id"]
    op.create_index("ix_jobs_queued", "jobs", order, postgresql_where=queued, sqlite_where=queued)
    op.create_index(
        "ix_jobs_lease_expire_time", "jobs", ["lease_expire_time"], postgresql_where=running, sqlite_where=running
    )


def _of_job() -> tuple[sa.Column[str], sa.ForeignKeyConstraint]:
    return _text("job_id", 40), sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], ondelete="CASCADE")


def _create_labels_and_events() -> None:
    op.create_table(
        "job_labels", *_of_job(), _text("key", 63), _text("value", 128), sa.PrimaryKeyConstraint("job_id", "key")
    )
    op.create_index("ix_job_labels_key_value_job_id", "job_labels", ["key", "value", "job_id"])
    op.create_table(
        "job_events",
        *_of_job(),
        _int("seq"),
        _time("time"),
        _text("type", 32),
        _state(),
        _int("attempt"),
        sa.Column("message", sa.Text(), nullable=False),
        _json("data"),
        sa.PrimaryKeyConstraint("job_id", "seq"),
    )


def _create_attempts() -> None:
    op.create_table(
        "job_attempts",
        *_of_job(),
        _int("attempt"),
        _text("id", 32),
        _int("lease_token"),
        _text("worker_id", 255),
        _int("from_step"),
        _time("start_time"),
        _time("ready_time", nullable=True),
        _time("end_time", nullable=True),
        _text("outcome", 16, nullable=True),
        sa.Column("charged", sa.Boolean(), nullable=False),
        _json("error", nullable=True),
        sa.PrimaryKeyConstraint("job_id", "attempt"),
        sa.UniqueConstraint("id"),
        sa.UniqueConstraint("job_id", "lease_token"),
        sa.CheckConstraint("(end_time IS NOT NULL) = (outcome IS NOT NULL)", name="outcome_iff_ended"),
    )
    unended = sa.text("end_time IS NULL")
    op.create_index(
        "uq_job_attempts_open", "job_attempts", ["job_id"], unique=True, postgresql_where=unended, sqlite_where=unended
    )


def _create_metrics_and_samples() -> None:
    op.create_table(
        "job_metrics",
        *_of_job(),
        _int("step"),
        _int("lease_token"),
        _time("time"),
        _json("scalars"),
        sa.PrimaryKeyConstraint("job_id", "step"),
    )
    op.create_table(
        "job_samples",
        *_of_job(),
        _int("step"),
        _int("index"),
        _int("lease_token"),
        sa.Column("prompt", sa.Text(), nullable=False),
        sa.Column("response", sa.Text(), nullable=False),
        sa.Column("score", sa.Double(), nullable=False),
        _json("components"),
        sa.Column("kl", sa.Double(), nullable=True),
        _int("response_tokens"),
        sa.Column("finished", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "step", "index"),
    )


def _create_checkpoints() -> None:
    op.create_table(
        "job_checkpoints",
        *_of_job(),
        _int("step"),
        _int("attempt"),
        _int("lease_token"),
        sa.Column("path", sa.Text(), nullable=False),
        _int("size_bytes"),
        _text("sha256", 64),
        _time("create_time"),
        sa.PrimaryKeyConstraint("job_id", "step"),
    )


def _create_keys_and_workers() -> None:
    op.create_table(
        "api_keys",
        _text("id", 40),
        _text("owner_id", 128),
        _text("key_hash", 64),
        _time("create_time"),
        _time("revoke_time", nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("key_hash"),
    )
    op.create_table(
        "workers",
        _text("id", 255),
        _text("host", 255),
        _text("metrics_url", 2048, nullable=True),
        _int("slots"),
        _int("busy"),
        _json("queues"),
        _time("start_time"),
        _time("update_time"),
        sa.PrimaryKeyConstraint("id"),
    )
