"""What every refusal is called over HTTP and over gRPC: one table for both doors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus

from grpc import StatusCode

from api import errors as door
from jobs import errors as domain
from jobs.errors import JobsError


@dataclass(frozen=True, slots=True)
class Status:
    """How one kind of refusal is reported."""

    http: HTTPStatus
    grpc: StatusCode
    title: str
    retry_after_seconds: int | None = None


TABLE: dict[type[JobsError], Status] = {
    JobsError: Status(HTTPStatus.INTERNAL_SERVER_ERROR, StatusCode.INTERNAL, "Internal error"),
    domain.JobNotFound: Status(HTTPStatus.NOT_FOUND, StatusCode.NOT_FOUND, "Not found"),
    domain.IllegalTransition: Status(
        HTTPStatus.CONFLICT, StatusCode.FAILED_PRECONDITION, "Not possible in the job's state"
    ),
    domain.EtagMismatch: Status(HTTPStatus.PRECONDITION_FAILED, StatusCode.ABORTED, "The job has changed"),
    domain.InvalidSpec: Status(HTTPStatus.UNPROCESSABLE_ENTITY, StatusCode.INVALID_ARGUMENT, "Invalid spec"),
    domain.InvalidArgument: Status(HTTPStatus.BAD_REQUEST, StatusCode.INVALID_ARGUMENT, "Invalid parameter"),
    domain.InvalidRequest: Status(HTTPStatus.UNPROCESSABLE_ENTITY, StatusCode.INVALID_ARGUMENT, "Invalid request"),
    domain.NoWorker: Status(HTTPStatus.SERVICE_UNAVAILABLE, StatusCode.UNAVAILABLE, "No worker for this", 60),
    domain.ErrandRefused: Status(HTTPStatus.UNPROCESSABLE_ENTITY, StatusCode.FAILED_PRECONDITION, "Cannot be done"),
    domain.ErrandFailed: Status(HTTPStatus.BAD_GATEWAY, StatusCode.INTERNAL, "The engine failed", 60),
    domain.IdempotencyConflict: Status(
        HTTPStatus.UNPROCESSABLE_ENTITY, StatusCode.ALREADY_EXISTS, "Idempotency key used with another spec"
    ),
    domain.DatasetNotFound: Status(HTTPStatus.NOT_FOUND, StatusCode.NOT_FOUND, "No such dataset"),
    domain.DatasetInUse: Status(HTTPStatus.CONFLICT, StatusCode.FAILED_PRECONDITION, "The dataset is in use"),
    domain.DatasetTooLarge: Status(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, StatusCode.RESOURCE_EXHAUSTED, "Dataset too large"
    ),
    domain.InvalidDataset: Status(HTTPStatus.UNPROCESSABLE_ENTITY, StatusCode.INVALID_ARGUMENT, "Invalid dataset"),
    domain.Unauthenticated: Status(HTTPStatus.UNAUTHORIZED, StatusCode.UNAUTHENTICATED, "No usable API key"),
    domain.Forbidden: Status(HTTPStatus.FORBIDDEN, StatusCode.PERMISSION_DENIED, "Not allowed for this key"),
    domain.DatasetQuotaExceeded: Status(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, StatusCode.RESOURCE_EXHAUSTED, "No room for the dataset"
    ),
    domain.KeyNotFound: Status(HTTPStatus.NOT_FOUND, StatusCode.NOT_FOUND, "No such key"),
    domain.QuotaExceeded: Status(HTTPStatus.TOO_MANY_REQUESTS, StatusCode.RESOURCE_EXHAUSTED, "Too many jobs", 30),
    domain.WebhookNotFound: Status(HTTPStatus.NOT_FOUND, StatusCode.NOT_FOUND, "No such webhook"),
    domain.AlreadyExists: Status(HTTPStatus.CONFLICT, StatusCode.ALREADY_EXISTS, "Exists already"),
    domain.LimitReached: Status(HTTPStatus.CONFLICT, StatusCode.FAILED_PRECONDITION, "Limit reached"),
    domain.Unavailable: Status(HTTPStatus.SERVICE_UNAVAILABLE, StatusCode.UNAVAILABLE, "Temporarily unavailable", 5),
    domain.LeaseLost: Status(HTTPStatus.CONFLICT, StatusCode.ABORTED, "Another attempt owns the job"),
    door.RouteNotFound: Status(HTTPStatus.NOT_FOUND, StatusCode.UNIMPLEMENTED, "No such path"),
    door.ProblemNotFound: Status(HTTPStatus.NOT_FOUND, StatusCode.NOT_FOUND, "No such problem"),
    door.MethodNotAllowed: Status(HTTPStatus.METHOD_NOT_ALLOWED, StatusCode.UNIMPLEMENTED, "Method not allowed"),
    door.MalformedBody: Status(HTTPStatus.BAD_REQUEST, StatusCode.INVALID_ARGUMENT, "Malformed body"),
    door.BodyTooLarge: Status(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, StatusCode.RESOURCE_EXHAUSTED, "Body too large"),
    door.BodyTimeout: Status(HTTPStatus.REQUEST_TIMEOUT, StatusCode.DEADLINE_EXCEEDED, "Body too slow"),
    door.UnsupportedMediaType: Status(
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE, StatusCode.INVALID_ARGUMENT, "Unsupported media type"
    ),
    door.RangeNotSatisfiable: Status(
        HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, StatusCode.OUT_OF_RANGE, "No such part"
    ),
    door.HostNotAllowed: Status(HTTPStatus.FORBIDDEN, StatusCode.PERMISSION_DENIED, "Host not allowed"),
    door.RateLimited: Status(HTTPStatus.TOO_MANY_REQUESTS, StatusCode.RESOURCE_EXHAUSTED, "Too many requests", 1),
    door.RequestRefused: Status(HTTPStatus.BAD_REQUEST, StatusCode.INVALID_ARGUMENT, "Request refused"),
}
"""Every refusal. A subclass without a row of its own is a defect that a test finds."""


def status_of(error: JobsError | type[JobsError]) -> Status:
    """The row of an error; of its nearest ancestor where it has none."""
    kind = error if isinstance(error, type) else type(error)
    return next(TABLE[base] for base in kind.__mro__ if base in TABLE)


def type_uri(error: JobsError | type[JobsError]) -> str:
    """RFC 9457 `type`: a path of this service that explains the problem."""
    return f"/problems/{error.code}"


def retry_after_seconds(error: JobsError) -> int | None:
    """Seconds after which a retry may help; None where it does not."""
    own: int | None = getattr(error, "retry_after_seconds", None)
    return status_of(error).retry_after_seconds if own is None else own


def catalogue() -> Iterator[dict[str, object]]:
    """The table for people: what each `type` means."""
    for kind, status in TABLE.items():
        meaning = (kind.__doc__ or "").strip() if kind is not JobsError else "A defect of this service; it is logged."
        yield {
            "type": type_uri(kind),
            "code": kind.code,
            "title": status.title,
            "status": status.http.value,
            "grpc_status": status.grpc.name,
            "meaning": meaning,
        }
