"""Who may enter: the same rule for HTTP headers and gRPC metadata."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus

import structlog

from api.forwarded import client_address
from api.operations import Operation
from api.rate import Allowance, Buckets
from api.settings import ApiSettings
from api.status import status_of
from api.strangers import Strangers
from api.threads import in_thread
from jobs.audit import record_refusal
from jobs.auth import LOCAL, Principal, authenticate, has_keys
from jobs.db import Database
from jobs.errors import Forbidden, JobsError, QuotaExceeded, Unauthenticated, Unavailable
from jobs.principal import scope_text

log = structlog.get_logger()

TRUSTED_SECONDS = 1.0
"""How long a key that was found valid is not looked up again; so long a revoked one may still be used."""
_MOST_KEYS = 10_000
_NOTED = (HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND)
"""Refusals that the audit log keeps, beside full quotas. An invalid spec or an ended job says nothing about access."""


def permit(principal: Principal, operation: Operation) -> None:
    """Raise Forbidden unless the key allows the operation."""
    if operation.scope is not None and not principal.may(operation.scope):
        raise Forbidden(
            f"your key lacks the scope `{operation.scope}`; it has: {scope_text(principal.scopes) or 'none'}",
            scope=operation.scope,
        )


def is_loopback(host: str) -> bool:
    """Whether `host`, an address or a name, means this machine only. Names other than localhost do not count."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@dataclass(slots=True)
class KnownCallers:
    """Who was found behind a key a moment ago: spares a busy client's requests a thread and a statement each."""

    _callers: dict[str, tuple[Principal, float]] = field(default_factory=dict, repr=False)

    def get(self, authorization: str) -> Principal | None:
        """The caller, if the database has named it within TRUSTED_SECONDS."""
        principal, until = self._callers.get(authorization, (None, 0.0))
        return principal if time.monotonic() < until else None

    def add(self, authorization: str, principal: Principal) -> None:
        """Remember a caller that the database has just named."""
        if len(self._callers) >= _MOST_KEYS:
            self._callers.clear()
        self._callers[authorization] = principal, time.monotonic() + TRUSTED_SECONDS


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a request comes from and what it is called."""

    request_id: str
    address: str | None


@dataclass(frozen=True, slots=True)
class Door:
    """One listening address and its rule: a valid key, or this machine while no key exists."""

    db: Database
    settings: ApiSettings
    host: str
    known: KnownCallers
    buckets: Buckets
    strangers: Strangers

    def origin(self, request_id: str, peer: str | None, forwarded: Sequence[str]) -> Origin:
        """Where a request comes from that `peer` sends, on behalf of others if it is a proxy that is trusted."""
        return Origin(request_id, client_address(peer, forwarded, self.settings.proxies))

    async def enter(self, authorization: str | None, origin: Origin) -> Principal:
        """The caller behind an `Authorization` value.

        Raises:
            Unauthenticated: no key, an unknown key, or another scheme than Bearer.
            RateLimited: the same, from an address that has sent too many of them.
        """
        principal = await self._caller(authorization, origin.address)
        return replace(principal, request_id=origin.request_id, address=origin.address)

    def count(self, principal: Principal) -> Allowance | None:
        """Count a request against its owner's rate; None where there is no limit, as without keys.

        Raises:
            RateLimited: too many in a short time.
        """
        rate = self.settings.rate
        if rate is None or principal.key_id is None:
            return None
        return self.buckets.take(principal.owner_id, rate)

    async def _caller(self, authorization: str | None, address: str | None) -> Principal:
        principal = None if authorization is None else self.known.get(authorization)
        if principal is not None:
            return principal
        async with self.strangers.turn(address, self.settings.failed_keys):
            return await in_thread(self._look_up, authorization)

    def _look_up(self, authorization: str | None) -> Principal:
        if authorization is None:
            if self.keyless():
                return LOCAL
            raise Unauthenticated("this service needs an API key: send `Authorization: Bearer ppo_...`")
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise Unauthenticated("the Authorization header must be `Bearer ppo_...`")
        principal = authenticate(self.db, key.strip(), self.settings.key_pepper)
        self.known.add(authorization, principal)
        return principal

    async def note_refusal(
        self, principal: Principal, operation: Operation, target: str | None, error: JobsError
    ) -> None:
        """Write into the audit log that somebody was kept from a change that was not theirs to make."""
        noted = status_of(error).http in _NOTED or isinstance(error, QuotaExceeded)
        if not operation.changes or not noted:
            return
        try:
            await in_thread(record_refusal, self.db, principal, operation.action, target, error.code)
        except Unavailable:
            log.warning("refusal_not_audited", action=operation.action, code=error.code)

    def keyless(self) -> bool:
        """Whether callers need no key now: the address is loopback and nobody has made a key."""
        return is_loopback(self.host) and not has_keys(self.db)
