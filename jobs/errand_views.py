"""What leaves the domain of an errand."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from jobs.views import JobError, View
from ppo_engine.errands import ErrandKind, Exported, Generation, RewardPreview
from ppo_engine.plans import Probe
from ppo_engine.verification import Verification


class ErrandState(StrEnum):
    """Where an errand stands; follows from its row."""

    WAITING = "waiting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class ErrandView(View):
    """An errand as its owner sees it. Once it has succeeded, the field of its kind holds the answer; not in lists."""

    id: str
    kind: ErrandKind
    state: ErrandState
    done: bool
    tries: int
    job_id: str | None = None
    """The job that it is about."""
    error: JobError | None
    create_time: datetime
    start_time: datetime | None
    end_time: datetime | None
    cancel_request_time: datetime | None = None
    preview: RewardPreview | None = None
    generation: Generation | None = None
    probe: Probe | None = None
    export: Exported | None = None
    verification: Verification | None = None
