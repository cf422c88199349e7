"""API keys: made, listed and revoked. A key is shown once and stored as HMAC-SHA-256."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets

import sqlalchemy as sa
from pydantic import SecretStr

from jobs import audit
from jobs.access_requests import KeyRequest
from jobs.access_views import KeyView, NewKeyView
from jobs.clock import db_time
from jobs.db import Database
from jobs.errors import Forbidden, InvalidArgument, KeyNotFound, Problem
from jobs.ids import sortable_id
from jobs.paging import id_before, token_behind
from jobs.principal import Principal, Scope, scope_text, scopes_of
from jobs.tables import ApiKey
from jobs.views import Page

PREFIX = "ppo_"
KEY_LENGTH = len(PREFIX) + 43
_ID = re.compile(r"key_[0-9a-z]{16,26}")


def create(db: Database, principal: Principal, wanted: KeyRequest, pepper: SecretStr) -> NewKeyView:
    """Make a key; the answer holds it, and nothing ever does again.

    Raises:
        InvalidArgument: it would outlive the maker's own key.
        Forbidden: for another owner, stronger than the maker's own key or longer-lived, without `admin`.
    """
    owner = principal.owner_id if wanted.owner is None else wanted.owner
    _check_allowed(principal, owner, wanted)
    key = PREFIX + secrets.token_urlsafe(32)
    row = {
        "id": sortable_id("key"),
        "owner_id": owner,
        "name": wanted.name,
        "scopes": scope_text(frozenset(wanted.scopes)),
        "key_hash": key_hash(key, pepper),
        "expire_time": None if wanted.expire_seconds is None else db_time(wanted.expire_seconds),
    }
    make = sa.insert(ApiKey).values(**row).returning(ApiKey)
    with db.transaction() as session:
        made = session.scalars(make).one()
        _check_life(made, principal)
        audit.record(session, principal, "key.create", made.id, owner=owner, scopes=made.scopes, name=made.name)
        return NewKeyView(**_view(made).model_dump(), key=key)


def page(
    db: Database,
    principal: Principal,
    *,
    owner: str | None = None,
    everybody: bool = False,
    page_size: int = 50,
    token: str | None = None,
) -> Page[KeyView]:
    """A page of the caller's keys, newest first, revoked and expired ones included; of `owner`, or of `everybody`.

    Raises:
        Forbidden: other keys than the caller's own, without `admin`.
    """
    owner = None if everybody else owner or principal.owner_id
    if owner != principal.owner_id and not principal.may(Scope.ADMIN):
        raise Forbidden("only an administrator may see the keys of others", scope=Scope.ADMIN)
    query = sa.select(ApiKey).order_by(ApiKey.id.desc()).limit(page_size + 1)
    if owner is not None:
        query = query.where(ApiKey.owner_id == owner)
    if token is not None:
        query = query.where(ApiKey.id < id_before(token, _ID))
    with db.read() as session:
        rows = list(session.scalars(query))
    following = token_behind(rows[page_size - 1].id) if len(rows) > page_size else None
    return Page[KeyView](items=[_view(row) for row in rows[:page_size]], next_page_token=following)


def revoke(db: Database, principal: Principal, key_id: str) -> tuple[KeyView, bool]:
    """Make a key useless, everywhere within a second; the flag says whether it was in use until now.

    Raises:
        KeyNotFound: there is none, or it is another owner's and the caller is no administrator.
    """
    mine = [ApiKey.id == key_id]
    if not principal.may(Scope.ADMIN):
        mine.append(ApiKey.owner_id == principal.owner_id)
    with db.transaction() as session:
        row = session.scalar(sa.select(ApiKey).where(*mine).with_for_update())
        if row is None:
            raise KeyNotFound("there is no such key")
        in_use = row.revoke_time is None
        if in_use:
            change = sa.update(ApiKey).where(ApiKey.id == row.id).values(revoke_time=db_time()).returning(ApiKey)
            row = session.scalars(change, execution_options={"populate_existing": True}).one()
            audit.record(session, principal, "key.revoke", row.id, owner=row.owner_id, name=row.name)
        return _view(row), in_use


def key_hash(key: str, pepper: SecretStr) -> str:
    """What is stored of a key."""
    return hmac.new(pepper.get_secret_value().encode(), key.encode(), hashlib.sha256).hexdigest()


def _check_allowed(principal: Principal, owner: str, wanted: KeyRequest) -> None:
    """A key begets no stronger one: else whoever finds a weak key has a strong one."""
    if principal.may(Scope.ADMIN):
        return
    if owner != principal.owner_id:
        raise Forbidden("only an administrator may make keys for another owner", scope=Scope.ADMIN)
    beyond = frozenset(wanted.scopes) - principal.scopes
    if beyond:
        raise Forbidden(f"your own key does not have: {scope_text(beyond)}", scope=next(iter(sorted(beyond))))


def _check_life(made: ApiKey, principal: Principal) -> None:
    """Times are compared as the database made them."""
    if principal.expire_time is None or principal.may(Scope.ADMIN):
        return
    if made.expire_time is None or made.expire_time > principal.expire_time:
        end = f"it must expire by {principal.expire_time:%Y-%m-%d %H:%M:%S} UTC, as your own key does"
        problem = Problem(pointer="/expire_seconds", code="too_late", detail=end)
        raise InvalidArgument("the key would outlive the one that makes it", problems=[problem])


def _view(row: ApiKey) -> KeyView:
    return KeyView(
        id=row.id,
        owner=row.owner_id,
        name=row.name,
        scopes=[scope.value for scope in Scope if scope in scopes_of(row.scopes)],
        create_time=row.create_time,
        expire_time=row.expire_time,
        last_use_time=row.last_use_time,
        revoke_time=row.revoke_time,
    )
