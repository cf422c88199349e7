"""What can go wrong for a client, made from the service's problem+json, with a message a person can act on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import httpx
from pydantic import BaseModel, ConfigDict, ValidationError

from jobs.errors import Problem

_MOST_LISTED = 24
"""A spec has no section with more fields."""


class ClientError(Exception):
    """Base of all errors of this package."""


class UnusableUrl(ClientError):
    """The service's URL is none."""


class ServiceUnreachable(ClientError):
    """No answer after all retries."""


class ProtocolError(ClientError):
    """The answer is not one of this service."""


class DownloadError(ClientError):
    """An archive is damaged, incomplete or unsafe; nothing of it was kept."""


class ApiError(ClientError):
    """The service refused. `problems` lists every reason it gave."""

    def __init__(self, document: ProblemDocument, retry_after_seconds: float | None = None) -> None:
        super().__init__(describe(document))
        self.status = document.status
        self.code = document.code
        self.detail = document.detail
        self.problems = document.errors
        self.request_id = document.request_id
        self.extra = document.model_extra or {}
        self.retry_after_seconds = retry_after_seconds


class InvalidRequest(ApiError):
    """400, 413, 415, 422: the request itself is wrong."""


class Unauthenticated(ApiError):
    """401: no usable key."""


class Forbidden(ApiError):
    """403: the key does not allow this."""


class NotFound(ApiError):
    """404: no such thing, or not yours."""


class Conflict(ApiError):
    """409: the job's state does not allow it; `extra` has `state` and `allowed_actions`."""


class PreconditionFailed(ApiError):
    """412: the job is no longer as it was seen."""


class RateLimited(ApiError):
    """429: too much at once; try after `retry_after_seconds`."""


class ServiceUnavailable(ApiError):
    """502, 503, 504: the service or its database is away."""


_BY_STATUS: dict[int, type[ApiError]] = {
    400: InvalidRequest,
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    412: PreconditionFailed,
    413: InvalidRequest,
    415: InvalidRequest,
    422: InvalidRequest,
    429: RateLimited,
    502: ServiceUnavailable,
    503: ServiceUnavailable,
    504: ServiceUnavailable,
}


class ProblemDocument(BaseModel):
    """A problem+json body (RFC 9457); members of single problem types stay in `model_extra`."""

    model_config = ConfigDict(frozen=True, extra="allow")

    status: int
    title: str = ""
    detail: str = ""
    code: str = ""
    request_id: str | None = None
    errors: list[Problem] = []


def from_response(response: httpx.Response) -> ApiError:
    """The typed error of an answer >= 400 whose body has been read; works for a proxy's HTML too."""
    document = _document(response)
    return _BY_STATUS.get(response.status_code, ApiError)(document, retry_after(response.headers))


def _document(response: httpx.Response) -> ProblemDocument:
    try:
        return ProblemDocument.model_validate({**response.json(), "status": response.status_code})
    except (ValueError, TypeError, ValidationError):
        return ProblemDocument(status=response.status_code, title=response.reason_phrase, detail=response.text[:200])


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds in Retry-After; None where it is absent or a date."""
    value = headers.get("retry-after", "")
    return float(value) if value.isdecimal() else None


def describe(document: ProblemDocument) -> str:
    """One readable block: what, then every problem with its place and what would do."""
    # With a list of problems, the detail only repeats the first of them.
    heading = document.title if document.errors else document.detail
    lines = [heading or document.detail or document.title or f"HTTP {document.status}"]
    lines += [_problem_line(problem) for problem in document.errors]
    if document.request_id and document.status >= 500:
        lines.append(f"  request id: {document.request_id}")
    return "\n".join(lines)


def _problem_line(problem: Problem) -> str:
    line = f"  {problem.pointer or '/'}: {problem.detail}"
    if problem.given not in (None, ""):
        line += f" (given: {_short(problem.given)})"
    if problem.suggestion and problem.suggestion not in problem.detail:
        line += f"\n      try: {problem.suggestion}"
    elif problem.allowed and not problem.suggestion:
        line += f"\n      allowed: {_listed(problem.allowed)}"
    return line


def _listed(allowed: Sequence[Any]) -> str:
    more = len(allowed) - _MOST_LISTED
    shown = ", ".join(_short(value) for value in allowed[:_MOST_LISTED])
    return shown + (f" and {more} more (GET /v1/capabilities)" if more > 0 else "")


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
