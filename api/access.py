"""Who may enter: the same rule for HTTP headers and gRPC metadata."""

from __future__ import annotations

import ipaddress
import time
from dataclasses import dataclass, field

from pydantic import SecretStr

from api.threads import in_thread
from jobs.auth import LOCAL, Principal, authenticate, has_keys
from jobs.db import Database
from jobs.errors import Unauthenticated

TRUSTED_SECONDS = 1.0
"""How long a key that was found valid is not looked up again; so long a revoked one may still be used."""
_MOST_KEYS = 10_000


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
class Door:
    """One listening address and its rule: a valid key, or this machine while no key exists."""

    db: Database
    pepper: SecretStr
    host: str
    known: KnownCallers

    async def enter(self, authorization: str | None) -> Principal:
        """The caller behind an `Authorization` value.

        Raises:
            Unauthenticated: no key, an unknown key, or another scheme than Bearer.
        """
        principal = None if authorization is None else self.known.get(authorization)
        if principal is not None:
            return principal
        return await in_thread(self._look_up, authorization)

    def _look_up(self, authorization: str | None) -> Principal:
        if authorization is None:
            if self.keyless():
                return LOCAL
            raise Unauthenticated("this service needs an API key: send `Authorization: Bearer ppo_...`")
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise Unauthenticated("the Authorization header must be `Bearer ppo_...`")
        principal = authenticate(self.db, key.strip(), self.pepper)
        self.known.add(authorization, principal)
        return principal

    def keyless(self) -> bool:
        """Whether callers need no key now: the address is loopback and nobody has made a key."""
        return is_loopback(self.host) and not has_keys(self.db)
