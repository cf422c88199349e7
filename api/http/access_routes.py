"""Who you are, keys, quotas, the audit log."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Response
from pydantic import Field

from api import errors as door
from api import me as callers
from api.http import queries
from api.http.body import json_object
from api.http.deps import Caller, Ctx
from api.http.errors import responses
from api.http.queries import NO_QUERY
from api.parameters import MAX_PAGE_SIZE
from jobs import audit, keys, quotas
from jobs import errors as domain
from jobs.access_requests import KeyRequest, QuotaRequest, parse
from jobs.access_views import AuditView, KeyView, MeView, NewKeyView, QuotaView
from jobs.views import Page

router = APIRouter(prefix="/v1", tags=["access"])

_ANY = (domain.InvalidArgument, domain.Unauthenticated, door.HostNotAllowed, door.RateLimited)
_SCOPED = responses(*_ANY, domain.Forbidden)
_BODY = (door.MalformedBody, door.BodyTimeout, door.BodyTooLarge, door.UnsupportedMediaType)
# A name with a line break is no path at all.
_OF_OWNER = (*_ANY, domain.Forbidden, door.RouteNotFound)
_WITH_BODY = responses(*_ANY, domain.Forbidden, *_BODY)

Document = Annotated[dict[str, Any], Depends(json_object)]
KeyId = Annotated[str, Path(max_length=40, description="Id of a key, `key_...`.")]
OwnerName = Annotated[str, Path(description="An owner's name.")]


def _body(name: str) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{name}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


class _Paged(queries.Query):
    page_size: int = Field(50, ge=1, description=f"Entries per page; more than {MAX_PAGE_SIZE} counts as that.")
    page_token: str | None = Field(None, description="`next_page_token` of the page before, with the same filters.")

    @property
    def size(self) -> int:
        return min(self.page_size, MAX_PAGE_SIZE)


class KeysQuery(_Paged):
    """Whose keys, and which page of them."""

    owner: str | None = Field(None, description="Default: you. Another takes the scope `admin`.")
    everybody: bool = Field(False, description="Keys of all owners; takes the scope `admin`.")


class AuditQuery(_Paged):
    """Which entries, and which page of them."""

    owner: str | None = Field(None, description="Only what this owner did.")
    target: str | None = Field(None, description="Only what was done to this job, key or owner.")


@router.get("/me", dependencies=[NO_QUERY], responses=responses(*_ANY))
def me(context: Ctx, caller: Caller) -> MeView:
    """Who the service takes you for, what your key allows, and how much of your quota is used."""
    return callers.me(context, caller)


@router.post("/keys", status_code=201, dependencies=[NO_QUERY], openapi_extra=_body("KeyRequest"), responses=_WITH_BODY)
def create_key(context: Ctx, caller: Caller, document: Document, response: Response) -> NewKeyView:
    """Make a key. This answer is the only one that ever shows it.

    A key makes none that allows more, or lives longer, than itself.
    """
    response.headers["Cache-Control"] = "no-store"
    return keys.create(context.db, caller, parse(KeyRequest, document), context.settings.key_pepper)


@router.get("/keys", responses=_SCOPED)
def list_keys(context: Ctx, caller: Caller, query: Annotated[KeysQuery, Query()]) -> Page[KeyView]:
    """List your keys, newest first, revoked and expired ones included."""
    return keys.page(
        context.db,
        caller,
        owner=query.owner,
        everybody=query.everybody,
        page_size=query.size,
        token=query.page_token,
    )


@router.delete(
    "/keys/{key_id}", dependencies=[NO_QUERY], responses=responses(*_ANY, domain.Forbidden, domain.KeyNotFound)
)
def revoke_key(context: Ctx, caller: Caller, key_id: KeyId) -> KeyView:
    """Revoke a key: refused everywhere within a second. Repeating it is harmless."""
    return keys.revoke(context.db, caller, key_id)[0]


@router.get("/quotas/{owner:path}", dependencies=[NO_QUERY], responses=responses(*_OF_OWNER))
def get_quota(context: Ctx, _caller: Caller, owner: OwnerName) -> QuotaView:
    """Get an owner's quota and what is used of it. Your own is in `GET /v1/me`."""
    return quotas.quota(context.db, owner, context.settings.limits)


@router.put(
    "/quotas/{owner:path}",
    dependencies=[NO_QUERY],
    openapi_extra=_body("QuotaRequest"),
    responses=responses(*_OF_OWNER, *_BODY),
)
def set_quota(context: Ctx, caller: Caller, owner: OwnerName, document: Document) -> QuotaView:
    """Set an owner's quota. What runs and waits already is left alone."""
    return quotas.set_quota(context.db, caller, owner, parse(QuotaRequest, document), context.settings.limits)


@router.get("/audit", responses=_SCOPED)
def list_audit(context: Ctx, _caller: Caller, query: Annotated[AuditQuery, Query()]) -> Page[AuditView]:
    """List who changed what, and who was kept from it, newest first."""
    return audit.entries(
        context.db, owner=query.owner, target=query.target, page_size=query.size, token=query.page_token
    )
