"""What routes are given: the process's context and the caller."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Header, Path, Request

from api.access import Door, is_loopback
from api.context import Context
from api.errors import HostNotAllowed
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
    """The caller; see `api.access`.

    Raises:
        Unauthenticated: no usable key.
        HostNotAllowed: a keyless service was addressed by a name that is not this machine's. A web page that makes its
            own name point here (DNS rebinding) must not become the local user.
    """
    door = Door(context.db, context.settings.key_pepper, context.settings.http_host, context.known_callers)
    principal = await door.enter(authorization)
    host = request.url.hostname or ""
    if authorization is None and not is_loopback(host):
        raise HostNotAllowed(f"without API keys this service answers to localhost only, not to `{host}`")
    return principal


Caller = Annotated[Principal, Depends(principal_of)]
JobId = Annotated[str, Path(pattern=JOB_ID, description="Id of a job, `job_...`.")]
