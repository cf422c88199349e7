"""What owners do with their webhooks: every function is one transaction, scoped to the principal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeVar

import sqlalchemy as sa
from pydantic import BaseModel, SecretStr
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from jobs import audit
from jobs.auth import Principal
from jobs.clock import db_time
from jobs.db import Database
from jobs.errors import AlreadyExists, InvalidArgument, InvalidRequest, LimitReached, Problem, WebhookNotFound
from jobs.history import check_range
from jobs.ids import sortable_id
from jobs.outbox import post
from jobs.paging import id_before, token_behind
from jobs.problems import check
from jobs.reach import webhook_problem
from jobs.spec import JobSpec, invalid_spec
from jobs.views import Page
from jobs.webhook_signing import new_salt, secret_of
from jobs.webhook_spec import WebhookChanges, WebhookSpec
from jobs.webhook_tables import IS_PENDING, Webhook, WebhookDelivery, WebhookMessage
from jobs.webhook_views import (
    DeliveryView,
    NewWebhookView,
    WebhookMessageView,
    WebhookSecretView,
    WebhookView,
)
from ppo_engine.egress import Egress

M = TypeVar("M", bound=BaseModel)

MAX_WEBHOOKS = 50
"""Of one owner: every event of the owner's jobs looks at all of them."""
MAX_PAGE_SIZE = 200
ROTATION_SECONDS = 24 * 3600
_ID = re.compile(r"[a-z]{2,3}_[0-9a-z]{26}")
_KNOWN = "there is a webhook for this URL already: change that one, or give it a new secret"


def create(
    db: Database, principal: Principal, document: dict[str, Any], *, pepper: SecretStr, egress: Egress
) -> NewWebhookView:
    """Make an endpoint; its secret is in the answer and cannot be shown again.

    Raises:
        InvalidRequest: with every problem of the document; also a URL whose host is not public.
        AlreadyExists: the owner has an endpoint of this URL.
        LimitReached: the owner has too many.
    """
    spec = _checked(WebhookSpec, document)
    _check_host(spec.url, egress)
    try:
        with db.transaction() as session:
            row = _insert(session, principal.owner_id, **spec.model_dump(mode="json"))
            shown = _view(row).model_dump()
            audit.record(session, principal, "webhook.create", row.id)
            return NewWebhookView(**shown, secret=secret_of(row.salt, pepper))
    except IntegrityError as error:
        raise AlreadyExists(_KNOWN) from error


def get(db: Database, principal: Principal, webhook_id: str) -> WebhookView:
    """One endpoint; raises WebhookNotFound."""
    with db.read() as session:
        return _view(_owned(session, principal, webhook_id))


def list_webhooks(
    db: Database, principal: Principal, *, page_size: int = 50, page_token: str | None = None
) -> Page[WebhookView]:
    """A page of the principal's endpoints, newest first."""
    query = sa.select(Webhook).where(Webhook.owner_id == principal.owner_id)
    with db.read() as session:
        rows, token = _page(session, query, Webhook.id, page_size, page_token)
        return Page[WebhookView](items=[_view(row) for row in rows], next_page_token=token)


def update(
    db: Database, principal: Principal, webhook_id: str, document: dict[str, Any], *, egress: Egress
) -> WebhookView:
    """Change what the document names. Enabling forgives past failures; disabling drops what still waits.

    Raises:
        WebhookNotFound: not the principal's.
        InvalidRequest: with every problem of the document.
        AlreadyExists: the owner has another endpoint of this URL.
    """
    changes = _checked(WebhookChanges, document).model_dump(mode="json", exclude_unset=True)
    if "url" in changes:
        _check_host(changes["url"], egress)
    if "enabled" in changes:
        changes |= {"disable_reason": None, "failing_since": None}
    try:
        with db.transaction() as session:
            row = _owned(session, principal, webhook_id, lock=True)
            if changes.get("enabled") is False:
                drop_waiting(session, row.id)
            audit.record(session, principal, "webhook.update", row.id, fields=sorted(changes))
            return _view(_set(session, row, **changes))
    except IntegrityError as error:
        raise AlreadyExists(_KNOWN) from error


def delete(db: Database, principal: Principal, webhook_id: str) -> None:
    """Remove an endpoint with its messages and its log; raises WebhookNotFound."""
    with db.transaction() as session:
        row = _owned(session, principal, webhook_id, lock=True)
        session.execute(sa.delete(Webhook).where(Webhook.id == row.id))
        audit.record(session, principal, "webhook.delete", row.id)


def rotate_secret(db: Database, principal: Principal, webhook_id: str, *, pepper: SecretStr) -> WebhookSecretView:
    """Give an endpoint a new secret. For ROTATION_SECONDS messages carry both signatures; raises WebhookNotFound."""
    with db.transaction() as session:
        row = _owned(session, principal, webhook_id, lock=True)
        until = db_time(ROTATION_SECONDS)
        row = _set(session, row, salt=new_salt(), previous_salt=row.salt, previous_until=until)
        if row.previous_until is None:
            raise AssertionError("it was just set")
        audit.record(session, principal, "webhook.rotate_secret", row.id)
        return WebhookSecretView(secret=secret_of(row.salt, pepper), previous_until=row.previous_until)


def send_test(db: Database, principal: Principal, webhook_id: str) -> WebhookMessageView:
    """Send a message of type `webhook.test`, whatever types the endpoint wants; it takes the way of all others.

    Raises:
        WebhookNotFound: not the principal's.
        InvalidArgument: the endpoint is disabled.
    """
    with db.transaction() as session:
        row = _enabled(_owned(session, principal, webhook_id, lock=True))
        audit.record(session, principal, "webhook.test", row.id)
        (message_id,) = post(session, [row.id], "webhook.test", {"webhook": {"id": row.id}})
        return WebhookMessageView(message_id=message_id)


def deliveries(
    db: Database,
    principal: Principal,
    webhook_id: str,
    *,
    message_id: str | None = None,
    page_size: int = 50,
    page_token: str | None = None,
) -> Page[DeliveryView]:
    """A page of an endpoint's delivery attempts, newest first; with `message_id`, of one message only."""
    query = sa.select(WebhookDelivery).where(WebhookDelivery.webhook_id == webhook_id)
    if message_id is not None:
        if not _ID.fullmatch(message_id):
            raise InvalidArgument("message_id is not an id of a message, `msg_...`")
        query = query.where(WebhookDelivery.message_id == message_id)
    with db.read() as session:
        _owned(session, principal, webhook_id)
        rows, token = _page(session, query, WebhookDelivery.id, page_size, page_token)
        about = sa.select(WebhookMessage).where(WebhookMessage.id.in_({row.message_id for row in rows}))
        messages = {message.id: message for message in session.scalars(about)}
        items = [_delivery_view(row, messages[row.message_id]) for row in rows]
        return Page[DeliveryView](items=items, next_page_token=token)


def redeliver(db: Database, principal: Principal, webhook_id: str, delivery_id: str) -> WebhookMessageView:
    """Send the message of a delivery again, with the same id, and with all its retries.

    Raises:
        WebhookNotFound: no such endpoint or delivery of the principal's.
        InvalidArgument: the endpoint is disabled.
    """
    with db.transaction() as session:
        row = _enabled(_owned(session, principal, webhook_id, lock=True))
        delivery = session.get(WebhookDelivery, delivery_id) if _ID.fullmatch(delivery_id) else None
        if delivery is None or delivery.webhook_id != row.id:
            raise WebhookNotFound("there is no such delivery")
        audit.record(session, principal, "webhook.redeliver", row.id, delivery=delivery.id)
        again = sa.update(WebhookMessage).where(WebhookMessage.id == delivery.message_id)
        session.execute(again.values(outcome=None, next_attempt_time=db_time(), due_since=db_time()))
        return WebhookMessageView(message_id=delivery.message_id)


# --- for a submit -------------------------------------------------------------------------------------------------


def enlist(session: Session, principal: Principal, spec: JobSpec) -> None:
    """Make sure that everybody a spec wants notified has an endpoint: a URL without one gets one.

    Raises:
        InvalidSpec: a webhook is not the principal's, or there would be too many.
    """
    new, problems = _unheard(session, principal, spec)
    if problems:
        raise invalid_spec(problems)
    for url in new:
        values = WebhookSpec(url=url, all_jobs=False).model_dump(mode="json")
        # A twin of this submit may be as far: then its endpoint is as good.
        with suppress(IntegrityError), session.begin_nested():
            _insert(session, principal.owner_id, **values)


def notify_problems(db: Database, principal: Principal, spec: JobSpec) -> list[Problem]:
    """What `enlist` would refuse; makes no endpoint."""
    with db.read() as session:
        return _unheard(session, principal, spec)[1]


def _unheard(session: Session, principal: Principal, spec: JobSpec) -> tuple[list[str], list[Problem]]:
    """URLs that need an endpoint, and what is wrong with those to be notified."""
    if not spec.notify:
        return [], []
    mine = list(session.execute(sa.select(Webhook.id, Webhook.url).where(Webhook.owner_id == principal.owner_id)))
    ids, urls = {row.id for row in mine}, {row.url for row in mine}
    new: list[str] = []
    problems: list[Problem] = []
    for index, item in enumerate(spec.notify):
        if item.webhook is not None and item.webhook not in ids:
            where, code, detail = f"/notify/{index}/webhook", "unknown_webhook", "there is no such webhook"
            problems.append(Problem(pointer=where, code=code, detail=detail, given=item.webhook))
        elif item.url is not None and item.url not in urls:
            urls.add(item.url)
            if len(urls) > MAX_WEBHOOKS:
                detail = f"an owner has at most {MAX_WEBHOOKS} webhooks; remove one first"
                problems.append(Problem(pointer=f"/notify/{index}/url", code="too_many", detail=detail))
            else:
                new.append(item.url)
    return new, problems


# --- parts --------------------------------------------------------------------------------------------------------


def drop_waiting(session: Session, webhook_id: str) -> None:
    """Nobody will send what an endpoint still waits for."""
    waiting = sa.update(WebhookMessage).where(WebhookMessage.webhook_id == webhook_id, IS_PENDING)
    session.execute(waiting.values(outcome="dropped"))


def _checked(model: type[M], document: dict[str, Any]) -> M:
    value, problems = check(model, document)
    if value is None or problems:
        raise InvalidRequest("the webhook is not usable as described", problems=problems)
    return value


def _check_host(url: str, egress: Egress) -> None:
    problem = webhook_problem(url, egress)
    if problem is not None:
        raise InvalidRequest("the webhook is not usable as described", problems=[problem])


def _insert(session: Session, owner_id: str, **values: Any) -> Webhook:
    count = sa.select(sa.func.count()).select_from(Webhook).where(Webhook.owner_id == owner_id)
    if (session.scalar(count) or 0) >= MAX_WEBHOOKS:
        raise LimitReached(f"an owner has at most {MAX_WEBHOOKS} webhooks; remove one first")
    row = Webhook(id=sortable_id("wh"), owner_id=owner_id, salt=new_salt(), **values)
    session.add(row)
    session.flush()
    session.refresh(row)
    return row


def _owned(session: Session, principal: Principal, webhook_id: str, *, lock: bool = False) -> Webhook:
    query = sa.select(Webhook).where(Webhook.id == webhook_id, Webhook.owner_id == principal.owner_id)
    # What cannot be an id may also be text that no database takes.
    possible = _ID.fullmatch(webhook_id) is not None
    # Not the lock of a deletion: events of jobs must not wait for it.
    row = session.scalar(query.with_for_update(key_share=True) if lock else query) if possible else None
    if row is None:
        raise WebhookNotFound("there is no such webhook")
    return row


def _enabled(row: Webhook) -> Webhook:
    if not row.enabled:
        raise InvalidArgument("the webhook is disabled; enable it first")
    return row


def _set(session: Session, row: Webhook, **values: Any) -> Webhook:
    change = sa.update(Webhook).where(Webhook.id == row.id).values(update_time=db_time(), **values).returning(Webhook)
    return session.scalars(change, execution_options={"populate_existing": True}).one()


def _page(
    session: Session, query: sa.Select[Any], key: Any, page_size: int, page_token: str | None
) -> tuple[Sequence[Any], str | None]:
    """Rows behind a token, newest first, and the token of the next page."""
    check_range("page_size", page_size, 1, 2**31)
    size = min(page_size, MAX_PAGE_SIZE)
    if page_token is not None:
        query = query.where(key < id_before(page_token, _ID))
    rows = list(session.scalars(query.order_by(key.desc()).limit(size + 1)))
    return rows[:size], token_behind(rows[size - 1].id) if len(rows) > size else None


def _view(row: Webhook) -> WebhookView:
    return WebhookView.model_validate(row, from_attributes=True)


def _delivery_view(row: WebhookDelivery, message: WebhookMessage) -> DeliveryView:
    values = {name: getattr(row, name) for name in DeliveryView.model_fields if name not in ("type", "outcome")}
    return DeliveryView(**values, type=message.type, outcome=message.outcome)
