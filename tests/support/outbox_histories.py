"""The part of random histories that is about webhooks: every event is told once, and an end of telling is one."""

from __future__ import annotations

from typing import ClassVar

import sqlalchemy as sa
from pydantic import SecretStr

from jobs import webhooks
from jobs.clock import db_time
from jobs.dispatch import DueMessage, Patience, Result, claim_due, prune, record_result
from jobs.tables import JobEvent
from jobs.webhook_tables import WebhookMessage
from ppo_engine.egress import NO_HOST_ALLOWED
from tests.support.attempts import ANN
from tests.support.unlucky import Unlucky

GOOD, BAD = Result(200, None, 0.1), Result(500, "the receiver answered 500", 0.1)
PEPPER = SecretStr("a pepper")
_FOR_EVER = 1e8
PATIENT = Patience(first_retry_seconds=60, retry_seconds=_FOR_EVER, disable_seconds=_FOR_EVER)
TIRED = Patience(first_retry_seconds=60, retry_seconds=0, disable_seconds=_FOR_EVER)
"""Gives a message up after its first failure."""


class OutboxHistory:
    """What was sent, and what became of it."""

    RULES: ClassVar = ["delivered", "failed", "given up", "sender died", "late answer", "prune"]

    def __init__(self, db: Unlucky) -> None:
        self._db = db
        self._sent: list[DueMessage] = []
        self._told: set[tuple[object, ...]] = set()
        """Events that had a message: it may be pruned by now."""
        self._settled: dict[str, str] = {}

    def subscribe(self) -> None:
        """One endpoint that hears of everything."""
        document = {"url": "https://hooks.example.com/", "event_types": ["*"]}
        webhooks.create(self._db, ANN, document, pepper=PEPPER, egress=NO_HOST_ALLOWED)

    def do(self, how: str, fault: str | None) -> None:
        """Send some messages, with a result; or let an old one be heard of again."""
        if how == "prune":
            self._db.until_it_answers(lambda: prune(self._db, keep_seconds=-60), fault)
            return
        if how == "late answer":
            for message in self._sent[-6:-3]:
                self._record(message, GOOD, PATIENT, fault)
            return
        with self._db.transaction() as session:  # the pause before the next attempt passes
            session.execute(sa.update(WebhookMessage).values(next_attempt_time=db_time(-1)))
        how_many = {"limit": 2, "busy": {}, "each": 2, "hold_seconds": 0}
        due = self._db.until_it_answers(lambda: claim_due(self._db, pepper=PEPPER, **how_many), fault)
        self._sent += due
        for message in due if how != "sender died" else []:
            self._record(message, GOOD if how == "delivered" else BAD, TIRED if how == "given up" else PATIENT, fault)

    def _record(self, message: DueMessage, result: Result, patience: Patience, fault: str | None) -> None:
        self._db.until_it_answers(lambda: record_result(self._db, message, result, patience, jitter=1.0), fault)

    def check(self) -> None:
        """Raise AssertionError where an event is told never or twice, or a message comes back from its end."""
        with self._db.read() as session:
            messages = list(session.scalars(sa.select(WebhookMessage)))
            events = {tuple(row) for row in session.execute(sa.select(JobEvent.job_id, JobEvent.seq))}
        now = [(row.data["job"]["id"], row.data["event"]["seq"]) for row in messages]
        assert len(set(now)) == len(now), "an event has two messages"
        self._told.update(now)
        assert self._told == events, f"not told of: {events - self._told}, of nothing: {self._told - events}"
        for row in messages:
            was = self._settled.get(row.id, row.outcome)
            assert row.outcome == was, f"message {row.id} was {was} and is {row.outcome}"
            if row.outcome is not None:
                self._settled[row.id] = row.outcome
