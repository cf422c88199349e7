"""Who asks: the owner behind an API key. Every question here is one statement."""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa
from pydantic import SecretStr

from jobs import keys
from jobs.access_requests import KeyRequest, parse
from jobs.access_views import KeyView
from jobs.clock import db_time
from jobs.db import Database
from jobs.errors import KeyNotFound, Unauthenticated, Unavailable
from jobs.keys import KEY_LENGTH, PREFIX, key_hash
from jobs.principal import LOCAL, OPERATOR, WORKING_SCOPES, Principal, Scope, scopes_of
from jobs.tables import ApiKey

__all__ = [
    "LOCAL",
    "OPERATOR",
    "Principal",
    "Scope",
    "authenticate",
    "create_key",
    "has_keys",
    "list_keys",
    "revoke_key",
]

USE_NOTED_SECONDS = 60
"""The last use of a key is written down at most this often."""


def authenticate(db: Database, key: str, pepper: SecretStr) -> Principal:
    """Return who is behind a key; raises Unauthenticated for anything else.

    The row is found by the whole of a keyed hash, so the time that takes tells nothing about keys or their ids.
    """
    if len(key) == KEY_LENGTH and key.startswith(PREFIX) and key.isascii():
        valid = [ApiKey.revoke_time.is_(None), sa.or_(ApiKey.expire_time.is_(None), ApiKey.expire_time > db_time())]
        query = sa.select(ApiKey, _unused_lately().label("unused")).where(ApiKey.key_hash == key_hash(key, pepper))
        with db.read() as session:
            found = session.execute(query.where(*valid)).one_or_none()
        if found is not None:
            row: ApiKey = found[0]
            if found.unused:
                _note_use(db, row.id)
            return Principal(row.owner_id, scopes_of(row.scopes), row.id, row.expire_time)
    raise Unauthenticated("the API key is missing, unknown, revoked or expired")


def has_keys(db: Database) -> bool:
    """Whether a key was ever made. A revoked one counts: revoking the last key must not open the door."""
    with db.read() as session:
        return session.scalar(sa.select(sa.exists().select_from(ApiKey))) or False


def create_key(
    db: Database,
    owner_id: str,
    pepper: SecretStr,
    *,
    name: str = "",
    scopes: Collection[Scope] = WORKING_SCOPES,
    expire_seconds: int | None = None,
) -> str:
    """Make a key as the operator and return it; it cannot be shown again."""
    wanted = {"owner": owner_id, "name": name, "scopes": sorted(scopes), "expire_seconds": expire_seconds}
    return keys.create(db, OPERATOR, parse(KeyRequest, wanted), pepper).key


def list_keys(db: Database) -> list[KeyView]:
    """All keys, oldest first."""
    found: list[KeyView] = []
    token = None
    while True:
        page = keys.page(db, OPERATOR, everybody=True, page_size=500, token=token)
        found += page.items
        if page.next_page_token is None:
            return sorted(found, key=lambda view: (view.create_time, view.id))
        token = page.next_page_token


def revoke_key(db: Database, key_id: str) -> bool:
    """Make a key useless as the operator; False if there is no such key in use."""
    try:
        return keys.revoke(db, OPERATOR, key_id)[1]
    except KeyNotFound:
        return False


def _unused_lately() -> sa.ColumnElement[bool]:
    return sa.or_(ApiKey.last_use_time.is_(None), ApiKey.last_use_time < db_time(-USE_NOTED_SECONDS))


def _note_use(db: Database, key_id: str) -> None:
    """Of several processes that saw it unused, one writes. A database that takes no writes still lets readers in."""
    change = sa.update(ApiKey).where(ApiKey.id == key_id, _unused_lately()).values(last_use_time=db_time())
    try:
        with db.transaction() as session:
            session.execute(change)
    except Unavailable:
        return
