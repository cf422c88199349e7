"""What the domain refuses, without a word of HTTP or gRPC: `api.status` gives each its codes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict


class Problem(BaseModel):
    """One thing wrong with a request: where (JSON pointer), what, and what would do."""

    model_config = ConfigDict(frozen=True)

    pointer: str
    code: str
    detail: str
    given: Any = None
    allowed: list[Any] | None = None
    suggestion: str | None = None


class JobsError(Exception):
    """A request that the domain refuses."""

    code: ClassVar[str] = "internal"

    def __init__(self, message: str, *, problems: Sequence[Problem] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.problems = list(problems)


class JobNotFound(JobsError):
    """No such job, or not yours."""

    code = "not_found"


class IllegalTransition(JobsError):
    """The job's state does not allow it."""

    code = "illegal_transition"

    def __init__(self, message: str, *, state: str, allowed_actions: Sequence[str]) -> None:
        super().__init__(message)
        self.state = state
        self.allowed_actions = list(allowed_actions)


class EtagMismatch(JobsError):
    """The job has changed since the ETag was read that the request names."""

    code = "etag_mismatch"


class InvalidSpec(JobsError):
    """The spec is not one we can run; `problems` holds every reason."""

    code = "invalid_spec"


class InvalidArgument(JobsError):
    """A parameter of a request is not usable."""

    code = "invalid_argument"


class InvalidRequest(JobsError):
    """The body of a request is not usable; `problems` holds every reason."""

    code = "invalid_request"


class NoWorker(JobsError):
    """No worker that could do it is alive."""

    code = "no_worker"


class ErrandRefused(JobsError):
    """What was asked of the engine cannot be done as asked; `problems` says why."""

    code = "errand_refused"


class ErrandFailed(JobsError):
    """The engine could not do what was asked, for no fault of the request; `problems` says why."""

    code = "errand_failed"


class IdempotencyConflict(JobsError):
    """The same idempotency key came with another spec."""

    code = "idempotency_conflict"


class DatasetNotFound(JobsError):
    """No such dataset, or not yours."""

    code = "dataset_not_found"


class DatasetInUse(JobsError):
    """A job that has not ended needs the dataset: cancel the job, or wait for its end."""

    code = "dataset_in_use"


class DatasetTooLarge(JobsError):
    """The dataset is larger than this service takes; `GET /v1/capabilities` says how much that is."""

    code = "dataset_too_large"


class DatasetQuotaExceeded(JobsError):
    """You keep as many datasets, or bytes of them, as you may: delete some; `GET /v1/me` says how many."""

    code = "dataset_quota_exceeded"


class InvalidDataset(JobsError):
    """Rows of the dataset cannot be used; `errors` says which, and why."""

    code = "invalid_dataset"


class WebhookNotFound(JobsError):
    """No such webhook or delivery, or not yours."""

    code = "webhook_not_found"


class Unauthenticated(JobsError):
    """No usable API key."""

    code = "unauthenticated"


class Forbidden(JobsError):
    """The key does not allow this; `scope` names what it lacks."""

    code = "forbidden"

    def __init__(self, message: str, *, scope: str) -> None:
        super().__init__(message)
        self.scope = scope


class KeyNotFound(JobsError):
    """No such API key, or not yours."""

    code = "key_not_found"


class QuotaExceeded(JobsError):
    """Too many jobs of this owner."""

    code = "quota_exceeded"

    def __init__(self, message: str, *, retry_after_seconds: int = 30) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class AlreadyExists(JobsError):
    """There is such a thing already, and there can be only one."""

    code = "already_exists"


class LimitReached(JobsError):
    """An owner has as many of these as are allowed; waiting does not help, removing one does."""

    code = "limit_reached"


class Unavailable(JobsError):
    """The database cannot be reached."""

    code = "unavailable"


class LeaseLost(JobsError):
    """Another attempt owns the job now: stop, and write nothing more."""

    code = "lease_lost"
