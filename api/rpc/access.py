"""AccessService: who you are, keys, quotas, the audit log."""

# ruff: noqa: N802, ARG002 (names and parameters are those of the generated base class)

from __future__ import annotations

from typing import Any

from api.context import Context
from api.me import me
from api.parameters import MAX_PAGE_SIZE, bounded
from api.rpc.convert import moment
from api.rpc.gate import CALLER
from api.rpc.v1 import access_service_pb2 as pb
from api.rpc.v1.access_service_pb2_grpc import AccessServiceServicer
from api.threads import in_thread
from jobs import audit, keys, quotas
from jobs.access_requests import KeyRequest, QuotaRequest, parse
from jobs.access_views import AuditView, KeyView, QuotaView


class AccessServicer(AccessServiceServicer):
    """AccessService over one context."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._db = context.db
        self._limits = context.settings.limits

    async def GetMe(self, request: pb.GetMeRequest, context: Any) -> pb.GetMeResponse:
        """Tell who calls."""
        found = await in_thread(me, self._context, CALLER.get())
        return pb.GetMeResponse(
            owner=found.owner,
            scopes=found.scopes,
            key_id=found.key_id,
            expire_time=moment(found.expire_time),
            quota=_quota(found.quota),
            rate_limit=None if found.rate_limit is None else pb.RateLimit(**found.rate_limit.model_dump()),
        )

    async def CreateKey(self, request: pb.CreateKeyRequest, context: Any) -> pb.CreateKeyResponse:
        """Make a key."""
        wanted = parse(KeyRequest, _given(request))
        made = await in_thread(keys.create, self._db, CALLER.get(), wanted, self._context.settings.key_pepper)
        return pb.CreateKeyResponse(api_key=_key(made), secret=made.key)

    async def ListKeys(self, request: pb.ListKeysRequest, context: Any) -> pb.ListKeysResponse:
        """List one page of keys."""
        page = await in_thread(
            keys.page,
            self._db,
            CALLER.get(),
            owner=request.owner or None,
            everybody=request.everybody,
            page_size=_page_size(request.page_size),
            token=request.page_token or None,
        )
        return pb.ListKeysResponse(api_keys=map(_key, page.items), next_page_token=page.next_page_token or "")

    async def RevokeKey(self, request: pb.RevokeKeyRequest, context: Any) -> pb.RevokeKeyResponse:
        """Revoke a key."""
        revoked, _ = await in_thread(keys.revoke, self._db, CALLER.get(), request.key_id)
        return pb.RevokeKeyResponse(api_key=_key(revoked))

    async def GetQuota(self, request: pb.GetQuotaRequest, context: Any) -> pb.GetQuotaResponse:
        """Tell an owner's quota."""
        found = await in_thread(quotas.quota, self._db, request.owner, self._limits)
        return pb.GetQuotaResponse(quota=_quota(found))

    async def SetQuota(self, request: pb.SetQuotaRequest, context: Any) -> pb.SetQuotaResponse:
        """Set an owner's quota."""
        wanted = parse(QuotaRequest, {name: value for name, value in _given(request).items() if name != "owner"})
        found = await in_thread(quotas.set_quota, self._db, CALLER.get(), request.owner, wanted, self._limits)
        return pb.SetQuotaResponse(quota=_quota(found))

    async def ListAuditEntries(self, request: pb.ListAuditEntriesRequest, context: Any) -> pb.ListAuditEntriesResponse:
        """List one page of the audit log."""
        page = await in_thread(
            audit.entries,
            self._db,
            owner=request.owner or None,
            target=request.target or None,
            page_size=_page_size(request.page_size),
            token=request.page_token or None,
        )
        return pb.ListAuditEntriesResponse(entries=map(_entry, page.items), next_page_token=page.next_page_token or "")


def _given(request: Any) -> dict[str, Any]:
    """The fields that are present, as the JSON they stand for; none of these messages nests."""
    return {field.name: list(value) if field.is_repeated else value for field, value in request.ListFields()}


def _page_size(given: int) -> int:
    return bounded("page_size", given, default=50, least=1, most=MAX_PAGE_SIZE)


def _key(view: KeyView) -> pb.ApiKey:
    return pb.ApiKey(
        id=view.id,
        owner=view.owner,
        name=view.name,
        scopes=view.scopes,
        create_time=moment(view.create_time),
        expire_time=moment(view.expire_time),
        last_use_time=moment(view.last_use_time),
        revoke_time=moment(view.revoke_time),
    )


def _quota(view: QuotaView) -> pb.Quota:
    return pb.Quota(
        owner=view.owner,
        running_jobs=pb.Usage(**view.running_jobs.model_dump()),
        queued_jobs=pb.Usage(**view.queued_jobs.model_dump()),
        datasets=pb.Usage(**view.datasets.model_dump()),
        stored_bytes=pb.Usage(**view.stored_bytes.model_dump()),
        is_default=view.is_default,
    )


def _entry(view: AuditView) -> pb.AuditEntry:
    plain = view.model_dump(exclude={"time", "detail"})
    entry = pb.AuditEntry(**plain, time=moment(view.time))
    entry.detail.SetInParent()  # an empty object is there, as in JSON
    entry.detail.update(view.detail)
    return entry
