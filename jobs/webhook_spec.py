"""What an owner says about a webhook, and a spec about whom to notify."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StringConstraints

from ppo_engine.config import Config, OneOf


class EventType(StrEnum):
    """What a message can tell. Those of jobs are the events of their journal."""

    ALL = "*"
    """Every event of a job, kinds of a later version included."""
    SUBMITTED = "job.submitted"
    CLAIMED = "job.claimed"
    STARTED = "job.started"
    CHECKPOINT = "job.checkpoint"
    GUARD = "job.guard"
    ROLLED_BACK = "job.rolled_back"
    MICROBATCH_HALVED = "job.microbatch_halved"
    REQUEUED = "job.requeued"
    PAUSED = "job.paused"
    RESUMED = "job.resumed"
    SUCCEEDED = "job.succeeded"
    FAILED = "job.failed"
    CANCELLED = "job.cancelled"
    DISABLED = "webhook.disabled"
    """The service gave up on another of the owner's endpoints."""


ENDS = [EventType.SUCCEEDED, EventType.FAILED, EventType.CANCELLED, EventType.PAUSED]
"""The default: a job needs nobody any more, or needs somebody."""


def _host(url: str) -> str:
    try:
        parts = urlsplit(url)
        named = bool(parts.hostname) and parts.port != 0
    except ValueError:
        named = False
    if not named:
        raise ValueError("must be a URL with a host and, if any, a valid port")
    return url


WebhookURL = Annotated[str, StringConstraints(pattern=r"^https?://[!-?A-~]+$", max_length=2048), AfterValidator(_host)]
"""http(s), ASCII without `@`: user names and passwords do not belong in it. Fragments are not sent."""
WebhookId = Annotated[str, StringConstraints(pattern=r"^wh_[0-9a-z]{26}$")]

_TYPES = Field(default_factory=lambda: list(ENDS), min_length=1, max_length=32, description="Which events to send.")


class WebhookSpec(Config):
    """A new endpoint."""

    url: WebhookURL = Field(description="Where to post. A host that is not public must be allowed by the operator.")
    event_types: list[EventType] = _TYPES
    description: str = Field("", max_length=256, description="For people.")
    all_jobs: bool = Field(True, description="Events of all your jobs; otherwise of those whose spec names it.")
    enabled: bool = Field(True, description="Whether messages are made and sent.")


class WebhookChanges(Config):
    """Changes of an endpoint; what is absent stays."""

    url: WebhookURL = Field("", validate_default=False, description="A new address.")
    event_types: list[EventType] = _TYPES
    description: str = Field("", max_length=256, description="For people.")
    all_jobs: bool = Field(True, description="Events of all your jobs; otherwise of those whose spec names it.")
    enabled: bool = Field(True, description="Whether messages are made and sent; true also forgives past failures.")


class Notify(OneOf):
    """Whom to tell about this job, beside the endpoints that hear of all jobs."""

    alternatives: ClassVar[tuple[str, ...]] = ("webhook", "url")

    webhook: WebhookId | None = Field(None, description="Id of an endpoint, `wh_...`.")
    url: WebhookURL | None = Field(
        None, description="An address; it becomes an endpoint for jobs that name it, if you have none there."
    )
