"""Rows and what the database itself guarantees about them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import CheckConstraint, Enum, ForeignKey, Index, String, UniqueConstraint
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from jobs.clock import UtcDateTime, db_time
from jobs.states import TERMINAL, JobState

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}

Json = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
_State = Enum(
    JobState,
    native_enum=False,
    length=16,
    create_constraint=True,
    name="state",
    values_callable=lambda states: [state.value for state in states],
)
_TERMINAL = ", ".join(f"'{state}'" for state in sorted(TERMINAL))
_QUEUED = sa.text("state = 'queued'")
_PINNED = sa.text("pinned_job_id IS NOT NULL")
_RUNNING = sa.text("state = 'running'")
_OPEN = sa.text("end_time IS NULL")
_WAITING = sa.text("end_time IS NULL AND worker_id IS NULL")
_TAKEN = sa.text("worker_id IS NOT NULL")


class Base(DeclarativeBase):
    """Every table of the service."""

    metadata = sa.MetaData(naming_convention=NAMING)
    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy reads it from the class
        datetime: UtcDateTime,
        dict[str, Any]: Json,
        dict[str, float]: Json,
        dict[str, str]: Json,
        list[str]: Json,
        list[dict[str, Any]]: Json,
        str: sa.Text,
        int: sa.BigInteger,
        float: sa.Double,
    }


def _now() -> Mapped[datetime]:
    return mapped_column(insert_default=db_time())


class Job(Base):
    """A job: what was asked, where it stands, who holds its lease. The row is its own wake-up outbox."""

    __tablename__ = "jobs"
    __table_args__ = (
        UniqueConstraint("owner_id", "request_id"),
        CheckConstraint(f"(end_time IS NOT NULL) = (state IN ({_TERMINAL}))", name="end_time_iff_terminal"),
        CheckConstraint("(lease_expire_time IS NOT NULL) = (state = 'running')", name="lease_iff_running"),
        CheckConstraint("(worker_id IS NOT NULL) = (state = 'running')", name="worker_iff_running"),
        CheckConstraint("failed_attempts <= max_attempts", name="attempts_within_max"),
        CheckConstraint("step >= 0 AND step <= steps_total", name="step_within_total"),
        Index("ix_jobs_owner_id_id", "owner_id", "id"),
        Index("ix_jobs_owner_id_state_id", "owner_id", "state", "id"),
        Index("ix_jobs_state_next_wake_time", "state", "next_wake_time"),
        Index(
            "ix_jobs_queued",
            "queue",
            "rank",
            "create_time",
            "id",
            postgresql_where=_QUEUED,
            sqlite_where=_QUEUED,
        ),
        Index("ix_jobs_pinned_job_id", "pinned_job_id", postgresql_where=_PINNED, sqlite_where=_PINNED),
        Index("ix_jobs_lease_expire_time", "lease_expire_time", postgresql_where=_RUNNING, sqlite_where=_RUNNING),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    owner_id: Mapped[str] = mapped_column(String(128))
    request_id: Mapped[str | None] = mapped_column(String(255))
    name: Mapped[str] = mapped_column(String(128))
    labels: Mapped[dict[str, str] | None]
    """As they are now, once somebody has changed them; the spec keeps what was submitted. `job_labels` is the index."""
    spec: Mapped[dict[str, Any]]
    spec_hash: Mapped[str] = mapped_column(String(64))
    queue: Mapped[str] = mapped_column(String(63))
    rank: Mapped[int]
    """Minus the spec's priority: one ascending index then gives the order of the queue."""
    max_attempts: Mapped[int]

    state: Mapped[JobState] = mapped_column(_State)
    phase: Mapped[str | None] = mapped_column(String(32))
    event_seq: Mapped[int]
    """`seq` of the newest event; counted here, so that events have no gaps."""
    attempt: Mapped[int] = mapped_column(insert_default=0)
    """Number of the newest attempt; part of the names of its log and checkpoints."""
    failed_attempts: Mapped[int] = mapped_column(insert_default=0)
    """Attempts charged against max_attempts; a worker's orderly shutdown charges none."""
    lease_token: Mapped[int] = mapped_column(insert_default=0)
    """The fence: whoever holds an older one may write nothing."""
    worker_id: Mapped[str | None] = mapped_column(String(255))
    lease_expire_time: Mapped[datetime | None]
    not_before: Mapped[datetime] = _now()
    """Not claimed earlier: the pause after a failed attempt."""
    next_wake_time: Mapped[datetime] = _now()
    """When a queued job is due for a (further) wake-up message."""
    cancel_request_time: Mapped[datetime | None]
    stop_request_time: Mapped[datetime | None]
    pause_request_time: Mapped[datetime | None]
    """Empty again once the job is paused, or its owner wants it to go on."""

    step: Mapped[int] = mapped_column(insert_default=0)
    steps_total: Mapped[int]
    seconds_per_step: Mapped[float | None]
    """Moving average of the last attempt, for the time left, and for plans of similar runs."""
    latest_metrics: Mapped[dict[str, float]] = mapped_column(insert_default=dict)
    last_checkpoint_step: Mapped[int | None]
    best_checkpoint_step: Mapped[int | None]
    microbatch_size: Mapped[int | None]
    """Half of what the spec says, in sequences, or one, after memory ran out; None: as in the spec. Where it is set, an
    attempt also samples its responses in two turns."""
    stop_reason: Mapped[str | None] = mapped_column(String(64))
    error: Mapped[dict[str, Any] | None]

    parent_job_id: Mapped[str | None] = mapped_column(String(40))
    """The job that this one was made from; it need not exist any more."""
    parent_step: Mapped[int | None]
    """Of its checkpoint that this one goes on from."""
    inherited: Mapped[dict[str, Any] | None]
    """Path and digest of that checkpoint, the step it means here, and what is not taken over of it."""
    pinned_job_id: Mapped[str | None] = mapped_column(String(40))
    """The parent, as long as its checkpoint is needed and not taken over yet."""

    create_time: Mapped[datetime] = _now()
    start_time: Mapped[datetime | None]
    end_time: Mapped[datetime | None]
    update_time: Mapped[datetime] = _now()


# Literals, not parameters: a planner that does not know the value cannot see that a partial index fits.
IS_QUEUED = Job.state == sa.literal_column("'queued'")
IS_RUNNING = Job.state == sa.literal_column("'running'")


def _job_id() -> Mapped[str]:
    return mapped_column(String(40), ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)


class JobLabel(Base):
    """A label of a job as it is now, to find it by."""

    __tablename__ = "job_labels"
    __table_args__ = (Index("ix_job_labels_key_value_job_id", "key", "value", "job_id"),)

    job_id: Mapped[str] = _job_id()
    key: Mapped[str] = mapped_column(String(63), primary_key=True)
    value: Mapped[str] = mapped_column(String(128))


class JobEvent(Base):
    """Something that happened to a job; replaying them gives its state."""

    __tablename__ = "job_events"

    job_id: Mapped[str] = _job_id()
    seq: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    time: Mapped[datetime] = _now()
    type: Mapped[str] = mapped_column(String(32))
    state: Mapped[JobState] = mapped_column(_State)
    attempt: Mapped[int]
    message: Mapped[str]
    data: Mapped[dict[str, Any]]


class JobAttempt(Base):
    """One worker's hold on a job, from claim to end."""

    __tablename__ = "job_attempts"
    __table_args__ = (
        UniqueConstraint("job_id", "lease_token"),
        CheckConstraint("(end_time IS NOT NULL) = (outcome IS NOT NULL)", name="outcome_iff_ended"),
        Index(
            "uq_job_attempts_open",
            "job_id",
            unique=True,
            postgresql_where=sa.text("end_time IS NULL"),
            sqlite_where=sa.text("end_time IS NULL"),
        ),
    )

    job_id: Mapped[str] = _job_id()
    attempt: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    id: Mapped[str] = mapped_column(String(32), unique=True)
    """Made by the claimant, to find out whether a claim went through when the connection broke."""
    lease_token: Mapped[int]
    worker_id: Mapped[str] = mapped_column(String(255))
    from_step: Mapped[int]
    start_time: Mapped[datetime] = _now()
    ready_time: Mapped[datetime | None]
    """When the models were loaded."""
    end_time: Mapped[datetime | None]
    end_step: Mapped[int | None]
    """The job's step when the attempt ended."""
    outcome: Mapped[str | None] = mapped_column(String(16))
    charged: Mapped[bool] = mapped_column(insert_default=False)
    error: Mapped[dict[str, Any] | None]


class JobMetrics(Base):
    """The scalar statistics of one step."""

    __tablename__ = "job_metrics"

    job_id: Mapped[str] = _job_id()
    step: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    lease_token: Mapped[int]
    time: Mapped[datetime] = _now()
    scalars: Mapped[dict[str, float]]


class JobSample(Base):
    """One stored response of a step."""

    __tablename__ = "job_samples"

    job_id: Mapped[str] = _job_id()
    step: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    index: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    lease_token: Mapped[int]
    prompt: Mapped[str]
    response: Mapped[str]
    score: Mapped[float]
    components: Mapped[dict[str, float]]
    kl: Mapped[float | None]
    response_tokens: Mapped[int]
    finished: Mapped[bool]
    evaluation: Mapped[bool] = mapped_column(server_default=sa.false())
    """Answers a prompt of the evaluation set."""


class JobCheckpoint(Base):
    """A checkpoint that is durable on disk and can be resumed from."""

    __tablename__ = "job_checkpoints"

    job_id: Mapped[str] = _job_id()
    step: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    attempt: Mapped[int]
    lease_token: Mapped[int]
    path: Mapped[str]
    """Folder, relative to the run directory."""
    size_bytes: Mapped[int]
    sha256: Mapped[str] = mapped_column(String(64))
    score: Mapped[float | None]
    """Value of the metric that ranks checkpoints, larger is better; None: not ranked."""
    create_time: Mapped[datetime] = _now()


class Dataset(Base):
    """An uploaded dataset; its rows are in a file of `datasets_dir`."""

    __tablename__ = "datasets"
    __table_args__ = (
        UniqueConstraint("owner_id", "sha256", "format"),
        Index("ix_datasets_owner_id_id", "owner_id", "id"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    owner_id: Mapped[str] = mapped_column(String(128))
    name: Mapped[str] = mapped_column(String(128))
    format: Mapped[str] = mapped_column(String(16))
    sha256: Mapped[str] = mapped_column(String(64))
    """Of the file as it was uploaded."""
    size_bytes: Mapped[int]
    stored_bytes: Mapped[int | None]
    """Of its rows as they are kept; None: by an older version of the service."""
    rows: Mapped[int]
    columns: Mapped[list[dict[str, Any]]]
    create_time: Mapped[datetime] = _now()


class JobDataset(Base):
    """A dataset that a job's spec names."""

    __tablename__ = "job_datasets"

    job_id: Mapped[str] = _job_id()
    dataset_id: Mapped[str] = mapped_column(
        String(40), ForeignKey("datasets.id", ondelete="CASCADE"), primary_key=True, index=True
    )


class ApiKey(Base):
    """An API key: whose it is, what it allows, and its hash."""

    __tablename__ = "api_keys"
    __table_args__ = (Index("ix_api_keys_owner_id_id", "owner_id", "id"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    owner_id: Mapped[str] = mapped_column(String(128))
    key_hash: Mapped[str] = mapped_column(String(64), unique=True)
    name: Mapped[str] = mapped_column(String(64), server_default=sa.text("''"))
    scopes: Mapped[str] = mapped_column(String(255), server_default=sa.text("'read submit control'"))
    """Names with spaces between."""
    create_time: Mapped[datetime] = _now()
    expire_time: Mapped[datetime | None]
    last_use_time: Mapped[datetime | None]
    """To the minute."""
    revoke_time: Mapped[datetime | None]


class Worker(Base):
    """A worker's last sign of life."""

    __tablename__ = "workers"

    id: Mapped[str] = mapped_column(String(255), primary_key=True)
    host: Mapped[str] = mapped_column(String(255))
    metrics_url: Mapped[str | None] = mapped_column(String(2048))
    slots: Mapped[int]
    busy: Mapped[int]
    queues: Mapped[list[str]]
    errands: Mapped[bool] = mapped_column(server_default=sa.true())
    """Whether it does errands."""
    max_running_jobs: Mapped[int | None]
    """Jobs that it lets one owner run at once, where an administrator set no other number; None: any."""
    start_time: Mapped[datetime] = _now()
    update_time: Mapped[datetime] = _now()


class Errand(Base):
    """Engine work that somebody waits for at the front door. Its state follows from who has it and what came of it."""

    __tablename__ = "errands"
    __table_args__ = (
        CheckConstraint("(lease_expire_time IS NOT NULL) = (worker_id IS NOT NULL)", name="lease_iff_taken"),
        CheckConstraint("worker_id IS NULL OR end_time IS NULL", name="no_worker_after_end"),
        CheckConstraint("(end_time IS NOT NULL) = (answer IS NOT NULL OR error IS NOT NULL)", name="outcome_iff_ended"),
        Index("ix_errands_open", "owner_id", postgresql_where=_OPEN, sqlite_where=_OPEN),
        Index("ix_errands_waiting", "queue", "create_time", "id", postgresql_where=_WAITING, sqlite_where=_WAITING),
        Index("ix_errands_lease_expire_time", "lease_expire_time", postgresql_where=_TAKEN, sqlite_where=_TAKEN),
        Index("ix_errands_expire_time", "expire_time"),
        Index("ix_errands_owner_id_id", "owner_id", "id"),
        Index("ix_errands_owner_id_kind_id", "owner_id", "kind", "id"),
        Index("ix_errands_owner_id_outcome_id", "owner_id", "outcome", "id"),
        Index("ix_errands_job_id_id", "job_id", "id"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    owner_id: Mapped[str] = mapped_column(String(128))
    kind: Mapped[str] = mapped_column(String(32))
    queue: Mapped[str] = mapped_column(String(63))
    job_id: Mapped[str | None] = mapped_column(String(40))
    """The job that it is about."""
    request: Mapped[dict[str, Any]]
    tries: Mapped[int] = mapped_column(insert_default=0)
    """Workers that began it; one that gave it back in order does not count."""
    lease_token: Mapped[int] = mapped_column(insert_default=0)
    """The fence, as for jobs."""
    worker_id: Mapped[str | None] = mapped_column(String(255))
    lease_expire_time: Mapped[datetime | None]
    cancel_request_time: Mapped[datetime | None]
    answer: Mapped[dict[str, Any] | None]
    error: Mapped[dict[str, Any] | None]
    outcome: Mapped[str] = mapped_column(String(16), server_default=sa.text("'open'"))
    """What came of it: `open` until it has ended, then succeeded, failed or cancelled."""
    create_time: Mapped[datetime] = _now()
    start_time: Mapped[datetime | None]
    end_time: Mapped[datetime | None]
    expire_time: Mapped[datetime]
    """When it is given up if nobody has taken it, and when its row is deleted once it has ended."""
