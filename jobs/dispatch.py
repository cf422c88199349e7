"""The outbox as its sender sees it: what is due, how an attempt went, what is old. Not scoped to an owner.

Any number of senders may run: a claim counts the attempt up and hides the message until the attempt must be over, and
only the newest attempt may say how it went. A sender that dies costs a delay, never a message; one that was too slow,
a second delivery with the same id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from pydantic import SecretStr
from sqlalchemy.orm import Session

from jobs.clock import db_time
from jobs.db import Database
from jobs.ids import least_id, sortable_id
from jobs.outbox import post
from jobs.plain import storable
from jobs.webhook_signing import secret_of
from jobs.webhook_spec import EventType
from jobs.webhook_tables import IS_PENDING, Webhook, WebhookDelivery, WebhookMessage
from jobs.webhooks import drop_waiting

_CANDIDATES = 200
_PRUNED_AT_ONCE = 1000
_LONGEST_PAUSE_SECONDS = 4 * 3600.0
GONE = 410
"""The status by which a receiver says that it wants no more."""


@dataclass(frozen=True)
class DueMessage:
    """A claimed message, with all that a sender needs."""

    id: str
    webhook_id: str
    url: str
    secrets: tuple[str, ...]
    """The secret, and for a while after a rotation the one before."""
    type: str
    time: datetime
    data: Mapping[str, Any]
    attempt: int


@dataclass(frozen=True)
class Result:
    """How one attempt went."""

    status: int | None
    error: str | None
    duration_seconds: float
    answer: str = ""
    retry_after_seconds: float = 0.0

    @property
    def delivered(self) -> bool:
        """Whether the receiver took the message."""
        return self.status is not None and 200 <= self.status < 300


@dataclass(frozen=True)
class Backlog:
    """What waits to be sent, retries included."""

    messages: int
    overdue_seconds: float
    """How long the one that is due longest has been left; near 0 while a sender keeps up."""


@dataclass(frozen=True)
class Patience:
    """How long to try."""

    first_retry_seconds: float
    retry_seconds: float
    disable_seconds: float

    def pause_seconds(self, attempt: int) -> float:
        """Before the attempt after this one: four times as long each time."""
        return float(min(self.first_retry_seconds * 4.0 ** min(attempt - 1, 20), _LONGEST_PAUSE_SECONDS))


def claim_due(
    db: Database, *, limit: int, busy: Mapping[str, int], each: int, hold_seconds: float, pepper: SecretStr
) -> list[DueMessage]:
    """Claim messages that are due, at most `limit`, and no more than `each` of one endpoint under way.

    `busy` counts what this sender already has under way. A claimed message is due again after `hold_seconds`.
    """
    full = [webhook_id for webhook_id, count in busy.items() if count >= each]
    due = sa.select(WebhookMessage.id, WebhookMessage.webhook_id)
    due = due.where(IS_PENDING, WebhookMessage.next_attempt_time <= db_time(), WebhookMessage.webhook_id.not_in(full))
    due = due.order_by(WebhookMessage.next_attempt_time).limit(_CANDIDATES)
    with db.read() as session:
        if session.execute(due.limit(1)).first() is None:
            return []  # nearly always; takes no lock
    with db.transaction() as session:
        chosen = _choose(session.execute(due.with_for_update(skip_locked=True)).all(), limit, busy, each)
        claim = sa.update(WebhookMessage).where(WebhookMessage.id.in_(chosen))
        values = {"attempts": WebhookMessage.attempts + 1, "next_attempt_time": db_time(hold_seconds)}
        claimed = list(session.scalars(claim.values(values).returning(WebhookMessage)))
        hooks = sa.select(Webhook, db_time().label("now")).where(Webhook.id.in_({row.webhook_id for row in claimed}))
        found = {hook.id: (hook, now) for hook, now in session.execute(hooks)}
    return [_due(row, *found[row.webhook_id], pepper) for row in claimed]


def record_result(db: Database, message: DueMessage, result: Result, patience: Patience, *, jitter: float) -> bool:
    """Write how an attempt went into the log, and what follows from it; False if endpoint or message are gone.

    `jitter` scales the pause before the next attempt, around 1.
    """
    with db.transaction() as session:
        locked = sa.select(Webhook).join(WebhookMessage, WebhookMessage.webhook_id == Webhook.id)
        locked = locked.where(WebhookMessage.id == message.id)
        # Not the lock of a deletion: events of jobs must not wait for it.
        hook = session.scalar(locked.with_for_update(key_share=True))
        if hook is None:
            return False
        session.add(
            WebhookDelivery(
                id=sortable_id("dlv"),
                webhook_id=message.webhook_id,
                message_id=message.id,
                attempt=message.attempt,
                status=result.status,
                error=result.error,
                duration_seconds=result.duration_seconds,
                answer=storable(result.answer),
            )
        )
        session.flush()
        pause = max(patience.pause_seconds(message.attempt) * jitter, result.retry_after_seconds)
        _settle(session, message, result, pause, patience)
        _judge(session, hook, result, patience)
    return True


def backlog(db: Database) -> Backlog:
    """Messages of all owners that are not delivered yet."""
    earliest = sa.func.min(WebhookMessage.next_attempt_time, type_=WebhookMessage.next_attempt_time.type)
    waiting = sa.select(sa.func.count().label("messages"), earliest.label("earliest"), db_time().label("now"))
    with db.read() as session:
        row = session.execute(waiting.where(IS_PENDING)).one()
    overdue = 0.0 if row.earliest is None else max(0.0, (row.now - row.earliest).total_seconds())
    return Backlog(row.messages, overdue)


def prune(db: Database, *, keep_seconds: float) -> int:
    """Remove messages older than `keep_seconds` that nobody tries any more, with their log; returns how many."""
    old = sa.select(WebhookMessage.id).where(WebhookMessage.id < least_id("msg", keep_seconds), ~IS_PENDING)
    gone = sa.delete(WebhookMessage).where(
        WebhookMessage.id.in_(old.order_by(WebhookMessage.id).limit(_PRUNED_AT_ONCE))
    )
    with db.transaction() as session:
        return len(session.scalars(gone.returning(WebhookMessage.id)).all())


def _choose(due: Any, limit: int, busy: Mapping[str, int], each: int) -> list[str]:
    """The oldest that fit: a slow receiver must not take every place."""
    under_way, chosen = Counter(busy), list[str]()
    for message_id, webhook_id in due:
        if len(chosen) < limit and under_way[webhook_id] < each:
            under_way[webhook_id] += 1
            chosen.append(message_id)
    return chosen


def _due(row: WebhookMessage, hook: Webhook, now: datetime, pepper: SecretStr) -> DueMessage:
    rotated = hook.previous_salt is not None and hook.previous_until is not None and now < hook.previous_until
    salts = [hook.salt, *([hook.previous_salt] if rotated and hook.previous_salt else [])]
    return DueMessage(
        id=row.id,
        webhook_id=hook.id,
        url=hook.url,
        secrets=tuple(secret_of(salt, pepper) for salt in salts),
        type=row.type,
        time=row.create_time,
        data=row.data,
        attempt=row.attempts,
    )


def _settle(session: Session, message: DueMessage, result: Result, pause_seconds: float, patience: Patience) -> None:
    """Say what becomes of the message, unless a newer attempt, its owner or its end has spoken already."""
    mine = WebhookMessage.id == message.id, WebhookMessage.attempts == message.attempt, IS_PENDING
    settle = sa.update(WebhookMessage).where(*mine)
    if result.delivered:
        session.execute(settle.values(outcome="delivered"))
        return
    last = WebhookMessage.due_since <= db_time(pause_seconds - patience.retry_seconds)
    session.execute(settle.where(last).values(outcome="given_up"))
    session.execute(settle.values(next_attempt_time=db_time(pause_seconds)))


def _judge(session: Session, hook: Webhook, result: Result, patience: Patience) -> None:
    """Forgive an endpoint, begin to count, or disable it."""
    this = sa.update(Webhook).where(Webhook.id == hook.id)
    if result.delivered:
        if hook.failing_since is not None:
            session.execute(this.values(failing_since=None))
        return
    if hook.failing_since is None:
        session.execute(this.values(failing_since=db_time()))
    if result.status == GONE:
        _disable(session, hook, "the receiver answered 410 Gone")
    elif hook.failing_since is not None and _now(session) - hook.failing_since > timedelta(
        seconds=patience.disable_seconds
    ):
        _disable(session, hook, f"nothing could be delivered since {hook.failing_since:%Y-%m-%d %H:%M} UTC")


def _disable(session: Session, hook: Webhook, reason: str) -> None:
    """Stop using an endpoint, and tell the owner's others."""
    off = sa.update(Webhook).where(Webhook.id == hook.id, Webhook.enabled.is_(True))
    off = off.values(enabled=False, disable_reason=reason, update_time=db_time())
    if session.execute(off.returning(Webhook.id)).first() is None:
        return
    drop_waiting(session, hook.id)
    others = sa.select(Webhook.id, Webhook.event_types).where(
        Webhook.owner_id == hook.owner_id, Webhook.enabled.is_(True), Webhook.id != hook.id
    )
    others = others.with_for_update(read=True, key_share=True)
    hearers = [row.id for row in session.execute(others) if EventType.DISABLED in row.event_types]
    data = {"webhook": {"id": hook.id, "url": hook.url, "disable_reason": reason}}
    post(session, hearers, EventType.DISABLED.value, data)


def _now(session: Session) -> datetime:
    return session.execute(sa.select(db_time())).scalar_one()
