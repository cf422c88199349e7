"""Who asks: an owner, what the key at hand allows, and where the request came from."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum


class Scope(StrEnum):
    """What a key allows. `api.operations` says which one each request needs."""

    READ = "read"
    """Look at the owner's jobs and fetch what they made."""
    SUBMIT = "submit"
    """Start work: jobs, forks, generations, previews; upload datasets."""
    CONTROL = "control"
    """Change and end what was started: cancel, pause, resume, stop, edit, delete."""
    KEYS = "keys"
    """Make, list and revoke keys of the same owner, none stronger than the one used."""
    ADMIN = "admin"
    """Everything above, and keys, quotas and the audit log of every owner. Not other owners' jobs."""


ALL_SCOPES = frozenset(Scope)
WORKING_SCOPES = frozenset({Scope.READ, Scope.SUBMIT, Scope.CONTROL})
"""What a key allows unless it was made with others."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Whose jobs a request may see, and what it may do."""

    owner_id: str
    scopes: frozenset[Scope] = WORKING_SCOPES
    key_id: str | None = field(default=None, compare=False)
    """The key that was used; None without keys and for the operator."""
    expire_time: datetime | None = field(default=None, compare=False)
    """When that key expires; a key that it makes must not live longer."""
    request_id: str | None = field(default=None, compare=False)
    address: str | None = field(default=None, compare=False)
    """Where the request came from."""

    def may(self, scope: Scope) -> bool:
        """Whether the key allows it; `admin` allows everything."""
        return scope in self.scopes or Scope.ADMIN in self.scopes


LOCAL = Principal("local", ALL_SCOPES)
"""Everybody, where no key was ever made."""

OPERATOR = Principal("operator", ALL_SCOPES)
"""Who has the database itself at hand."""


def scope_text(scopes: frozenset[Scope]) -> str:
    """Scopes as they are stored and shown: names in the order of their strength."""
    return " ".join(scope for scope in Scope if scope in scopes)


def scopes_of(text: str) -> frozenset[Scope]:
    """Scopes as they were stored; names of another version of the service allow nothing."""
    words = set(text.split())
    return frozenset(scope for scope in Scope if scope in words)
