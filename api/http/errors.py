"""problem+json (RFC 9457) for every refusal, and for defects without their insides."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from api import errors as door
from api.http.deps import door_of
from api.operations import of_route
from api.status import TABLE, retry_after_seconds, status_of, type_uri
from jobs.auth import Principal
from jobs.errors import (
    Forbidden,
    IllegalTransition,
    InvalidArgument,
    JobNotFound,
    JobsError,
    Problem,
    Unauthenticated,
    Unavailable,
)
from jobs.mask import mask_all
from jobs.plain import pointer
from jobs.problems import choices, nearest, sentence, shown

MEDIA_TYPE = "application/problem+json"

Responses = dict[int | str, dict[str, Any]]

log = structlog.get_logger()


class ProblemDetails(BaseModel):
    """Why a request was refused. `code` is what a program should switch on; `errors` holds every reason at once."""

    type: str = Field(description="Path of this service that explains the problem.")
    title: str
    status: int
    detail: str
    code: str = Field(description="Stable name of the problem.")
    request_id: str = Field(description="Also in the `X-Request-Id` header; the service's log has it too.")
    errors: list[Problem] = []
    state: str | None = Field(None, description="The job's state, where that is the reason.")
    allowed_actions: list[str] | None = Field(None, description="Verbs the job's state allows.")
    scope: str | None = Field(None, description="The scope that the key lacks, where that is the reason.")


def install(app: FastAPI) -> None:
    """Answer every error of `app` with problem+json."""
    app.exception_handler(JobsError)(_on_jobs_error)
    app.exception_handler(RequestValidationError)(_on_invalid_request)
    app.exception_handler(HTTPException)(_on_http_exception)


def problem_response(request: Request, error: JobsError, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """The answer for one refusal."""
    status = status_of(error)
    details = ProblemDetails(
        type=type_uri(error),
        title=status.title,
        status=status.http.value,
        detail=error.message,
        code=error.code,
        request_id=request.state.request_id,
        errors=error.problems,
        state=error.state if isinstance(error, IllegalTransition) else None,
        allowed_actions=error.allowed_actions if isinstance(error, IllegalTransition) else None,
        scope=error.scope if isinstance(error, Forbidden) else None,
    )
    # Whatever part of the request a problem repeats: a key that was sent to the wrong place must not come back.
    content = mask_all(details.model_dump(mode="json", exclude_none=True))
    return JSONResponse(content, status.http.value, {**_headers(error), **(headers or {})}, media_type=MEDIA_TYPE)


def defect_response(request: Request) -> JSONResponse:
    """The answer for an exception nobody expected: the id to look for in the log, and nothing of its insides."""
    return problem_response(request, JobsError("the service failed at this request; its log has the reason"))


def _headers(error: JobsError) -> dict[str, str]:
    headers = {"Cache-Control": "no-store"}
    if isinstance(error, Unauthenticated):
        headers["WWW-Authenticate"] = 'Bearer realm="ppo"'
    if isinstance(error, Forbidden):
        headers["WWW-Authenticate"] = f'Bearer realm="ppo", error="insufficient_scope", scope="{error.scope}"'
    if isinstance(error, door.RateLimited):
        headers |= error.headers
    if isinstance(error, door.RangeNotSatisfiable):
        headers["Content-Range"] = f"bytes */{error.size}"
    seconds = retry_after_seconds(error)
    if seconds is not None:
        headers["Retry-After"] = str(seconds)
    return headers


async def _on_jobs_error(request: Request, error: JobsError) -> JSONResponse:
    if status_of(error).http is HTTPStatus.INTERNAL_SERVER_ERROR:
        log.error("request_failed", exc_info=error)
        return defect_response(request)
    principal: Principal | None = getattr(request.state, "principal", None)
    if principal is not None:
        operation = of_route(request.method, request.scope["route"].path)
        target = next(iter(request.path_params.values()), None)
        await door_of(request.app.state.context).note_refusal(principal, operation, target, error)
    return problem_response(request, error)


async def _on_http_exception(request: Request, error: HTTPException) -> JSONResponse:
    """Starlette's own refusals: no such route, wrong method."""
    path = request.url.path
    if error.status_code == HTTPStatus.NOT_FOUND:
        return problem_response(request, door.RouteNotFound(f"there is nothing at {path}; /docs lists what there is"))
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        refused = door.MethodNotAllowed(f"{path} has no method {request.method}")
        return problem_response(request, refused, _allow(request, error))
    return problem_response(request, door.RequestRefused(str(error.detail)), error.headers)


def _allow(request: Request, error: HTTPException) -> dict[str, str]:
    """Every method of the path; the router names those of its first route alone."""
    methods = _described(request)
    return {"Allow": ", ".join(sorted(method.upper() for method in methods))} if methods else dict(error.headers or {})


def _described(request: Request) -> dict[str, Any]:
    """What the OpenAPI document says about the matched path, by method."""
    paths: dict[str, dict[str, Any]] = request.app.openapi()["paths"]
    return paths.get(getattr(request.scope.get("route"), "path", ""), {})


async def _on_invalid_request(request: Request, error: RequestValidationError) -> JSONResponse:
    """Parameters that FastAPI refused, in our words. A path that cannot be an id names no job."""
    found = error.errors()
    if any(e["loc"][:2] == ("path", "job_id") for e in found):
        return problem_response(request, JobNotFound("there is no such job"))
    names = _parameter_names(request)
    problems = [_problem(e, names) for e in found]
    return problem_response(request, InvalidArgument("the request's parameters are not usable", problems=problems))


def _parameter_names(request: Request) -> list[str]:
    """Names of the query parameters that the matched route takes."""
    operation = _described(request).get(request.method.lower(), {})
    return [parameter["name"] for parameter in operation.get("parameters", []) if parameter["in"] == "query"]


def _problem(error: Mapping[str, Any], names: list[str]) -> Problem:
    # Without the first part, which says only that it is a query parameter, a header or part of the path.
    loc = error["loc"][1:]
    given = shown(error.get("input"))
    if error["type"] == "extra_forbidden":
        code, detail, allowed, word = "unknown_parameter", "there is no such parameter", names, loc[-1]
    else:
        code, detail = sentence(error)
        allowed, word = (choices(error) if error["type"] == "enum" else []), given
    near = nearest(word, allowed)
    return Problem(
        pointer=pointer(loc), code=code, detail=detail, given=given, allowed=allowed or None, suggestion=near
    )


def responses(*kinds: type[JobsError]) -> Responses:
    """OpenAPI entries for the refusals a route can give; every route can also fail with 500 and 503.

    `default` says that nothing else looks different, and keeps FastAPI from describing errors that it does not send.
    """
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}}
    by_status: dict[int, list[str]] = {}
    every: tuple[type[JobsError], ...] = (*kinds, JobsError, Unavailable)
    for kind in every:
        by_status.setdefault(TABLE[kind].http, []).append(f"{TABLE[kind].title} (`{kind.code}`)")
    described: Responses = {
        status: {"description": ", or ".join(titles) + ".", "content": content} for status, titles in by_status.items()
    }
    return {**described, "default": {"description": "Any other refusal.", "content": content}}
