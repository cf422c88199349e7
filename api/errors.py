"""What the door refuses before the domain sees it. `api.status` gives each its codes, as for the domain's errors."""

from __future__ import annotations

from collections.abc import Mapping

from jobs.errors import JobsError


class RouteNotFound(JobsError):
    """There is nothing at this path."""

    code = "route_not_found"


class ProblemNotFound(JobsError):
    """No problem has this code; `GET /problems` lists all."""

    code = "problem_not_found"


class MethodNotAllowed(JobsError):
    """The path exists, but not with this method; `Allow` lists those it has."""

    code = "method_not_allowed"


class MalformedBody(JobsError):
    """The body is not one JSON object: broken syntax, a name twice in one object, NaN, bad text."""

    code = "malformed_body"


class BodyTooLarge(JobsError):
    """The body is larger than this service takes; `GET /v1/capabilities` says how much that is."""

    code = "body_too_large"


class BodyTimeout(JobsError):
    """The body did not arrive in time."""

    code = "body_timeout"


class UnsupportedMediaType(JobsError):
    """The body must be `application/json`, not compressed."""

    code = "unsupported_media_type"


class HostNotAllowed(JobsError):
    """Without API keys the service answers only to this machine's own names."""

    code = "host_not_allowed"


class RequestRefused(JobsError):
    """The request cannot be served in this form."""

    code = "request_refused"


class RateLimited(JobsError):
    """Too many requests of this owner, or from this address without a usable key; `RateLimit` says what is left."""

    code = "rate_limited"

    def __init__(self, message: str, *, retry_after_seconds: int, headers: Mapping[str, str]) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds
        self.headers = dict(headers)


class RangeNotSatisfiable(JobsError):
    """The wanted part begins behind the end; `Content-Range` says how long the whole is."""

    code = "range_not_satisfiable"

    def __init__(self, message: str, *, size: int) -> None:
        super().__init__(message)
        self.size = size
