"""Keys, quotas, the audit log, and who the service takes the caller for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import quote

from jobs.access_views import AuditView, KeyView, MeView, NewKeyView, QuotaView
from jobs.principal import Scope
from ppo_client.pages import pages
from ppo_client.transport import Transport

_PAGE_SIZE = 200


class Keys:
    """`client.keys`: the caller's, or everybody's for an administrator. Errors are those of PPOClient's methods."""

    def __init__(self, http: Transport) -> None:
        self._http = http

    def create(
        self,
        *,
        owner: str | None = None,
        name: str = "",
        scopes: Sequence[Scope | str] = (),
        expire_seconds: int | None = None,
    ) -> NewKeyView:
        """Make a key; `key` in the answer is shown only here. Without `scopes`: read, submit and control.

        Repeated because the answer got lost, it leaves one more key that nobody knows; `list` shows it.
        """
        body = {"owner": owner, "name": name, "scopes": list(map(str, scopes)), "expire_seconds": expire_seconds}
        given = {field: value for field, value in body.items() if value}
        return NewKeyView.model_validate(self._http.json("POST", "/v1/keys", body=given))

    def list(self, *, owner: str | None = None, everybody: bool = False) -> Iterator[KeyView]:
        """Keys, newest first, revoked and expired ones included; pages are fetched as they are needed."""
        params = {"owner": owner} if owner else {"everybody": True} if everybody else {}
        return pages(self._http, "/v1/keys", KeyView, {**params, "page_size": _PAGE_SIZE})

    def revoke(self, key_id: str) -> KeyView:
        """Make a key useless, everywhere within a second; a second call changes nothing."""
        return KeyView.model_validate(self._http.json("DELETE", f"/v1/keys/{quote(key_id, safe='')}"))


class Access:
    """The part of `PPOClient` that is about who may do what."""

    _http: Transport

    def me(self) -> MeView:
        """Who the service takes this client for, what its key allows, and how much of the quota is used."""
        return MeView.model_validate(self._http.json("GET", "/v1/me"))

    def quota(self, owner: str) -> QuotaView:
        """An owner's quota and what is used of it; for administrators."""
        return QuotaView.model_validate(self._http.json("GET", _quota(owner)))

    def set_quota(
        self,
        owner: str,
        *,
        max_running_jobs: int | None = None,
        max_queued_jobs: int | None = None,
        max_datasets: int | None = None,
        max_stored_bytes: int | None = None,
    ) -> QuotaView:
        """Set all limits of an owner, None for the service's default; for administrators."""
        body = {
            "max_running_jobs": max_running_jobs,
            "max_queued_jobs": max_queued_jobs,
            "max_datasets": max_datasets,
            "max_stored_bytes": max_stored_bytes,
        }
        return QuotaView.model_validate(self._http.json("PUT", _quota(owner), body=body))

    def audit(self, *, owner: str | None = None, target: str | None = None) -> Iterator[AuditView]:
        """Who changed what, newest first: what `owner` did, or what was done to `target`; for administrators."""
        params = {name: value for name, value in (("owner", owner), ("target", target)) if value}
        return pages(self._http, "/v1/audit", AuditView, {**params, "page_size": _PAGE_SIZE})


def _quota(owner: str) -> str:
    return f"/v1/quotas/{quote(owner, safe='')}"
