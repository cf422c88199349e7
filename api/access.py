"""Who may enter: the same rule for HTTP headers and gRPC metadata."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from pydantic import SecretStr

from jobs.auth import LOCAL, Principal, authenticate, has_keys
from jobs.db import Database
from jobs.errors import Unauthenticated


def is_loopback(host: str) -> bool:
    """Whether `host`, an address or a name, means this machine only. Names other than localhost do not count."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Door:
    """One listening address and its rule: a valid key, or this machine while no key exists."""

    db: Database
    pepper: SecretStr
    host: str

    def enter(self, authorization: str | None) -> Principal:
        """The caller behind an `Authorization` value.

        Raises:
            Unauthenticated: no key, an unknown key, or another scheme than Bearer.
        """
        if authorization is None:
            if self.keyless():
                return LOCAL
            raise Unauthenticated("this service needs an API key: send `Authorization: Bearer ppo_...`")
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise Unauthenticated("the Authorization header must be `Bearer ppo_...`")
        return authenticate(self.db, key.strip(), self.pepper)

    def keyless(self) -> bool:
        """Whether callers need no key now: the address is loopback and nobody has made a key."""
        return is_loopback(self.host) and not has_keys(self.db)
