"""What leaves the domain: frozen values that REST, gRPC and the client share. Times are UTC."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

from jobs.states import JobState

T = TypeVar("T")

ROLLED_BACK = "rolled_back"
"""Type of the event after which steps are reported anew."""


class View(BaseModel):
    """A value for clients; unknown fields of a newer service are ignored by an older client."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Page(View, Generic[T]):
    """One page of a list, and the token of the next (None on the last)."""

    items: list[T]
    next_page_token: str | None = None


class Progress(View):
    """How far a run is."""

    step: int
    steps_total: int
    percent: float
    eta_seconds: float | None = None


class JobError(View):
    """Why a job, or its last attempt, failed."""

    code: str
    category: str
    message: str
    suggestion: str = ""
    phase: str | None = None
    step: int | None = None
    attempt: int
    exit_code: int | None = None
    signal: str | None = None
    log_tail: str = ""


class Queue(View):
    """Where a queued job stands."""

    position: int
    reason: str


class ParentView(View):
    """The job that another was made from."""

    job_id: str
    step: int | None
    """Of the checkpoint that the job goes on from; None where it begins anew."""
    carried: list[str]
    """What is taken over of that checkpoint: `weights`, and the parts of the training state."""


class JobView(View):
    """A job as its owner sees it."""

    id: str
    name: str
    state: JobState
    phase: str | None
    done: bool
    allowed_actions: list[str]
    spec: dict[str, Any]
    spec_hash: str
    labels: dict[str, str]
    attempt: int
    max_attempts: int
    progress: Progress
    latest_metrics: dict[str, float]
    health: str | None = None
    """`ok`, `warning` or `critical` by the newest numbers alone; None before the first step."""
    stop_reason: str | None
    error: JobError | None
    last_checkpoint_step: int | None
    best_checkpoint_step: int | None = None
    parent: ParentView | None = None
    microbatch_size: int | None = None
    """Half of what the spec says, in sequences, since memory ran out; None: as in the spec."""
    create_time: datetime
    start_time: datetime | None
    end_time: datetime | None
    update_time: datetime
    cancel_request_time: datetime | None
    stop_request_time: datetime | None = None
    pause_request_time: datetime | None = None
    queue: Queue | None
    etag: str
    links: dict[str, str]


class AttemptView(View):
    """One worker's hold on a job, from claim to end."""

    attempt: int
    worker_id: str
    start_time: datetime
    ready_time: datetime | None
    """When the models were loaded."""
    end_time: datetime | None
    from_step: int
    """Last step of the checkpoint it went on from."""
    to_step: int | None
    """Last step that it reported; None where an older version of the service did not note it."""
    outcome: str | None
    """Where the job went: an end, `paused`, `requeued`; `lost` where the worker fell silent. None while it runs."""
    charged: bool
    """Whether it counts against retry.max_attempts."""
    error: JobError | None


class FindingView(View):
    """Something in a run's newest numbers that its owner should look at."""

    name: str
    level: str
    """`warning` or `critical`."""
    metric: str
    value: float
    usual: float | None
    """What the value is compared with, where the rule says so: a median over other steps."""
    rule: str
    advice: str
    source: str
    """Where the threshold comes from."""


class HealthView(View):
    """Whether a run's numbers look well; step and status are None before its first step."""

    job_id: str
    step: int | None
    status: str | None
    """`ok`, or the level of the worst finding."""
    findings: list[FindingView]


class JobEventView(View):
    """One thing that happened to a job; `seq` counts from 1 within the job, without gaps."""

    seq: int
    time: datetime
    type: str
    state: JobState
    attempt: int
    message: str
    data: dict[str, Any]

    def place_after(self, step: int) -> int:
        """The last step that is still seen after this event, for someone who had seen `step`.

        What a run reported after the step that it rolled back to is void, and is reported anew.
        """
        to_step = self.data.get("to_step") if self.type == ROLLED_BACK else None
        return step if to_step is None else min(step, int(to_step))


class MetricsView(View):
    """Metrics of a job as columns: `series[key][i]` belongs to `steps[i]`; None where a key was not reported."""

    job_id: str
    steps: list[int]
    times: list[datetime]
    series: dict[str, list[float | None]]
    downsampled: bool


class SampleSort(StrEnum):
    """The order of the responses of a step; a minus puts the largest first."""

    INDEX = "index"
    SCORE_UP = "score"
    SCORE_DOWN = "-score"
    KL_UP = "kl"
    KL_DOWN = "-kl"
    LENGTH_UP = "response_tokens"
    LENGTH_DOWN = "-response_tokens"


class SampleView(View):
    """One stored response."""

    step: int
    index: int
    prompt: str
    response: str
    score: float
    components: dict[str, float]
    kl: float | None
    response_tokens: int
    finished: bool
    evaluation: bool = False


class CheckpointView(View):
    """A checkpoint that can be downloaded."""

    step: int
    attempt: int
    size_bytes: int
    sha256: str
    score: float | None = None
    create_time: datetime
    links: dict[str, str]


class ColumnView(View):
    """What the rows of a dataset hold under one name."""

    name: str
    kinds: list[str]
    """Of text, number, boolean, null, list, object: those that occur."""
    rows: int
    """Rows that have it."""
    longest_characters: int
    """Of its texts, or of the messages of its conversations."""
    first_row_not_text: int | None = None
    """The first row, from 1, without a text in it; None: it can be a prompt everywhere."""
    first_row_not_chat: int | None = None
    """The first row with neither a text nor a list of messages."""


class DatasetView(View):
    """An uploaded dataset. `size_bytes` and `sha256` are those of the file as it was uploaded."""

    id: str
    name: str
    format: str
    rows: int
    columns: list[ColumnView]
    size_bytes: int
    stored_bytes: int | None = None
    """Of its rows as they are kept, which count for the quota; None: by an older version of the service."""
    sha256: str
    create_time: datetime
    preview: list[dict[str, Any]] = []
    """The first rows, long values cut; only where one dataset was asked for."""
    links: dict[str, str]


class LogsView(View):
    """The end of an attempt's log."""

    attempt: int
    lines: list[str]
    truncated: bool
