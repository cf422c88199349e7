"""Who asks: API keys and their owners. Keys are shown once and stored as HMAC-SHA-256."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from pydantic import SecretStr

from jobs.clock import db_time
from jobs.db import Database
from jobs.errors import InvalidArgument, Unauthenticated
from jobs.tables import ApiKey

_PREFIX = "ppo_"
_KEY_LENGTH = len(_PREFIX) + 43


@dataclass(frozen=True)
class Principal:
    """Whose jobs a request may see."""

    owner_id: str


LOCAL = Principal(owner_id="local")
"""Everybody, where no key was ever made."""


@dataclass(frozen=True)
class KeyInfo:
    """A key as an operator sees it, without the key."""

    id: str
    owner_id: str
    create_time: datetime
    revoke_time: datetime | None


def create_key(db: Database, owner_id: str, pepper: SecretStr) -> str:
    """Make a key for an owner and return it; it cannot be shown again."""
    if not 1 <= len(owner_id) <= 128 or not owner_id.isprintable():
        raise InvalidArgument("an owner is 1 to 128 printable characters")
    key = _PREFIX + secrets.token_urlsafe(32)
    with db.transaction() as session:
        row = ApiKey(id=f"key_{secrets.token_hex(8)}", owner_id=owner_id, key_hash=_hash(key, pepper))
        session.add(row)
    return key


def authenticate(db: Database, key: str, pepper: SecretStr) -> Principal:
    """Return the owner of a key; raises Unauthenticated for anything else."""
    if len(key) == _KEY_LENGTH and key.startswith(_PREFIX) and key.isascii():
        query = sa.select(ApiKey.owner_id).where(ApiKey.key_hash == _hash(key, pepper), ApiKey.revoke_time.is_(None))
        with db.read() as session:
            owner_id = session.scalar(query)
        if owner_id is not None:
            return Principal(owner_id)
    raise Unauthenticated("the API key is missing, unknown or revoked")


def has_keys(db: Database) -> bool:
    """Whether a key was ever made. A revoked one counts: revoking the last key must not open the door."""
    with db.read() as session:
        return session.scalar(sa.select(sa.exists().select_from(ApiKey))) or False


def list_keys(db: Database) -> list[KeyInfo]:
    """All keys, oldest first."""
    with db.read() as session:
        rows = session.scalars(sa.select(ApiKey).order_by(ApiKey.create_time, ApiKey.id))
        return [KeyInfo(row.id, row.owner_id, row.create_time, row.revoke_time) for row in rows]


def revoke_key(db: Database, key_id: str) -> bool:
    """Make a key useless; False if there is no such key in use."""
    revoke = sa.update(ApiKey).where(ApiKey.id == key_id, ApiKey.revoke_time.is_(None)).values(revoke_time=db_time())
    with db.transaction() as session:
        return session.execute(revoke.returning(ApiKey.id)).first() is not None


def _hash(key: str, pepper: SecretStr) -> str:
    return hmac.new(pepper.get_secret_value().encode(), key.encode(), hashlib.sha256).hexdigest()
