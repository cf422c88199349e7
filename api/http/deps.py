"""What routes are given: the process's context and the caller."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Header, Path, Request

from api.access import Door, is_loopback, permit
from api.context import Context
from api.errors import HostNotAllowed
from api.operations import of_route
from api.parameters import JOB_ID
from jobs.auth import Principal


async def context_of(request: Request) -> Context:
    """The context that create_app was given."""
    context: Context = request.app.state.context
    return context


Ctx = Annotated[Context, Depends(context_of)]


async def principal_of(
    request: Request, context: Ctx, authorization: Annotated[str | None, Header(include_in_schema=False)] = None
) -> Principal:
    """The caller, who may do what this route does; see `api.access` and `api.operations`.

    Raises:
        Unauthenticated: no usable key.
        HostNotAllowed: a keyless service was addressed by a name that is not this machine's. A web page that makes its
            own name point here (DNS rebinding) must not become the local user.
        RateLimited: too many requests of this owner, or too many without a usable key from this address.
        Forbidden: the key lacks the scope.
    """
    door = door_of(context)
    peer = request.client.host if request.client else None
    origin = door.origin(request.state.request_id, peer, request.headers.getlist("x-forwarded-for"))
    principal = await door.enter(authorization, origin)
    host = request.url.hostname or ""
    if authorization is None and not is_loopback(host):
        raise HostNotAllowed(f"without API keys this service answers to localhost only, not to `{host}`")
    request.state.allowance = door.count(principal)
    request.state.principal = principal
    permit(principal, of_route(request.method, request.scope["route"].path))
    return principal


def door_of(context: Context) -> Door:
    """The rule of the HTTP address."""
    settings = context.settings
    return Door(context.db, settings, settings.http_host, context.known_callers, context.buckets, context.strangers)


Caller = Annotated[Principal, Depends(principal_of)]
JobId = Annotated[str, Path(pattern=JOB_ID, description="Id of a job, `job_...`.")]
