"""The outbox: written with the event or not at all, claimed under a fence, tried, given up, forgotten."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import sqlalchemy as sa

from jobs import webhooks
from jobs.auth import Principal
from jobs.db import Database
from jobs.dispatch import DueMessage, Patience, Result, backlog, prune, record_result
from jobs.lifecycle import succeed
from jobs.states import Move
from jobs.tables import Job
from jobs.transition import Happening, note
from jobs.webhook_spec import EventType
from jobs.webhook_tables import Webhook, WebhookDelivery, WebhookMessage
from ppo_engine.egress import NO_HOST_ALLOWED
from tests.support.attempts import ANN, claimed, submitted
from tests.support.http_api import PEPPER
from tests.support.receivers import PATIENCE, claim

URL = "https://hooks.example.com/"
GOOD, BAD = Result(200, None, 0.1), Result(500, "the receiver answered 500", 0.1)


def endpoint(db: Database, principal: Principal = ANN, url: str = URL, **values: object) -> str:
    document = {"url": url, "event_types": ["*"], **values}
    return webhooks.create(db, principal, document, pepper=PEPPER, egress=NO_HOST_ALLOWED).id


def types(messages: list[DueMessage]) -> list[str]:
    return sorted(message.type for message in messages)


def settle(db: Database, message: DueMessage, result: Result, patience: Patience = PATIENCE) -> None:
    assert record_result(db, message, result, patience, jitter=1.0)


def outcomes(db: Database) -> list[str | None]:
    with db.read() as session:
        return list(session.scalars(sa.select(WebhookMessage.outcome).order_by(WebhookMessage.id)))


def shift(db: Database, seconds: float) -> None:
    """Let so much time pass for everything in the outbox."""
    with db.transaction() as session:
        for table, names in ((WebhookMessage, ("next_attempt_time", "due_since")), (Webhook, ("failing_since",))):
            for row in session.scalars(sa.select(table)):
                for name in names:
                    value = getattr(row, name)
                    if value is not None:
                        setattr(row, name, value - timedelta(seconds=seconds))


def test_each_move_of_a_job_has_its_type():
    assert {f"job.{move}" for move in Move} <= set(EventType)


def test_a_message_is_committed_with_its_event_or_not_at_all(database: Database):
    endpoint(database)
    job_id = submitted(database)
    with pytest.raises(RuntimeError):
        _end_before_the_commit(database, job_id)
    assert types(claim(database)) == ["job.submitted"]


def _end_before_the_commit(db: Database, job_id: str) -> None:
    with db.transaction() as session:
        note(session, "guard", [Job.id == job_id], Happening("never happened"))
        raise RuntimeError("the process ends")


def test_who_hears_of_what(database: Database):
    everything = endpoint(database, url=f"{URL}1")
    ends = endpoint(database, url=f"{URL}2", event_types=["job.succeeded"])
    named = endpoint(database, url=f"{URL}3", all_jobs=False)
    unnamed = endpoint(database, url=f"{URL}4", all_jobs=False)
    job_id = submitted(database, notify=[{"webhook": named}, {"url": f"{URL}5"}])
    succeed(database, claimed(database, job_id).lease)
    heard: dict[str, list[str]] = {}
    for message in claim(database):
        heard.setdefault(message.webhook_id, []).append(message.type)
    made = next(hook for hook in webhooks.list_webhooks(database, ANN).items if hook.url == f"{URL}5")
    all_three = ["job.claimed", "job.submitted", "job.succeeded"]
    assert {key: sorted(value) for key, value in heard.items()} == {
        everything: all_three,
        named: all_three,
        ends: ["job.succeeded"],
        made.id: ["job.succeeded"],
    }
    assert unnamed not in heard
    assert (made.all_jobs, made.event_types) == (False, ["job.succeeded", "job.failed", "job.cancelled", "job.paused"])


def test_a_sender_that_dies_costs_a_delay_and_a_late_one_is_not_believed(database: Database):
    endpoint(database)
    submitted(database)
    (dead,) = claim(database, hold_seconds=0.1)
    assert claim(database) == []
    time.sleep(0.15)
    (second,) = claim(database)
    assert (second.id, dead.attempt, second.attempt) == (dead.id, 1, 2)
    settle(database, dead, GOOD)  # it was only slow
    assert outcomes(database) == [None]
    settle(database, second, BAD)
    settle(database, dead, GOOD)
    assert outcomes(database) == [None]
    with database.read() as session:
        attempts = list(session.scalars(sa.select(WebhookDelivery.attempt).order_by(WebhookDelivery.id)))
    assert attempts == [1, 2, 1], "what was sent is in the log, believed or not"


def test_pauses_grow_and_end(database: Database):
    endpoint(database)
    submitted(database)
    waited = []
    for _ in range(4):
        (message,) = claim(database)
        settle(database, message, BAD)
        pause = PATIENCE.pause_seconds(message.attempt)
        shift(database, pause - 5)
        assert claim(database) == []
        shift(database, 6)
        waited.append(pause)
    assert waited == [60, 240, 960, 3840]
    assert outcomes(database) == ["given_up"]


def test_a_receiver_may_ask_for_a_longer_pause(database: Database):
    endpoint(database)
    submitted(database)
    (message,) = claim(database)
    settle(database, message, Result(429, "too much", 0.1, retry_after_seconds=600))
    shift(database, 590)
    assert claim(database) == []
    shift(database, 11)
    assert len(claim(database)) == 1


def test_gone_disables_and_the_owner_hears_of_it(database: Database):
    hook = endpoint(database)
    other = endpoint(database, url=f"{URL}other", event_types=["webhook.disabled"])
    endpoint(database, Principal("bob"), event_types=["webhook.disabled"])
    for _ in range(2):
        submitted(database)
    first, second = claim(database)
    settle(database, first, Result(410, "gone", 0.1))
    view = webhooks.get(database, ANN, hook)
    assert (view.enabled, view.disable_reason) == (False, "the receiver answered 410 Gone")
    assert outcomes(database)[:2] == ["dropped", "dropped"]
    (notice,) = claim(database)
    assert (notice.webhook_id, notice.type) == (other, "webhook.disabled")
    assert notice.data["webhook"]["id"] == hook
    settle(database, second, BAD)
    assert webhooks.update(database, ANN, hook, {"enabled": True}, egress=NO_HOST_ALLOWED).disable_reason is None


def test_an_endpoint_that_fails_for_long_is_disabled(database: Database):
    hook = endpoint(database)
    submitted(database)
    (message,) = claim(database)
    settle(database, message, BAD)
    assert webhooks.get(database, ANN, hook).failing_since is not None
    shift(database, PATIENCE.disable_seconds + 1)
    (message,) = claim(database)
    settle(database, message, BAD)
    view = webhooks.get(database, ANN, hook)
    assert not view.enabled
    assert (view.disable_reason or "").startswith("nothing could be delivered since")


def test_one_good_delivery_forgives(database: Database):
    hook = endpoint(database)
    submitted(database)
    for result in (BAD, GOOD):
        (message,) = claim(database)
        settle(database, message, result)
        shift(database, 61)
    assert webhooks.get(database, ANN, hook).failing_since is None


def test_a_slow_endpoint_does_not_take_every_place(database: Database):
    crowd, alone = endpoint(database, url=f"{URL}1"), endpoint(database, Principal("bob"))
    for _ in range(5):
        submitted(database)
    submitted(database, Principal("bob"))
    assert [message.webhook_id for message in claim(database, limit=3, each=2)] == [crowd, crowd, alone]
    assert claim(database, limit=3, each=2, **{crowd: 2}) == []
    assert len(claim(database, limit=3, each=2, **{crowd: 1})) == 1


def test_old_messages_and_their_log_are_removed(database: Database):
    endpoint(database)
    for _ in range(3):
        submitted(database)
    first, second, _ = sorted(claim(database), key=lambda message: message.id)
    settle(database, first, GOOD)
    settle(database, second, BAD)
    assert prune(database, keep_seconds=60) == 0
    assert prune(database, keep_seconds=-1) == 1, "only what nobody tries any more"
    assert outcomes(database) == [None, None]


@pytest.mark.slow
def test_an_endpoint_that_is_just_being_removed_does_not_undo_an_event(postgres_url: str):
    db = Database(postgres_url)
    hook, job_id = endpoint(db), submitted(db)
    with ThreadPoolExecutor(1) as pool:
        with db.transaction() as session:
            session.execute(sa.delete(Webhook).where(Webhook.id == hook))
            claiming = pool.submit(claimed, db, job_id)
            time.sleep(0.3)
            assert not claiming.done(), "it waits to see whether the endpoint is gone"
        assert claiming.result(10).lease.job_id == job_id
    assert claim(db) == []
    db.dispose()


@pytest.mark.slow
def test_events_do_not_wait_for_an_endpoint_that_is_being_changed(postgres_url: str):
    db = Database(postgres_url)
    hook, job_id = endpoint(db), submitted(db)
    with db.transaction() as session, ThreadPoolExecutor(1) as pool:
        webhooks._set(session, webhooks._owned(session, ANN, hook, lock=True), description="new")
        assert pool.submit(claimed, db, job_id).result(5)
    assert types(claim(db)) == ["job.claimed", "job.submitted"]
    db.dispose()


def test_the_backlog_tells_waiting_from_overdue(database: Database):
    endpoint(database)
    assert (backlog(database).messages, backlog(database).overdue_seconds) == (0, 0.0)
    for _ in range(2):
        submitted(database)
    first, _ = claim(database)
    settle(database, first, BAD)
    shift(database, -60)
    assert (backlog(database).messages, backlog(database).overdue_seconds) == (2, 0.0)
    shift(database, 400)
    waiting = backlog(database)
    assert waiting.messages == 2
    assert 200 < waiting.overdue_seconds < 400


def test_a_result_that_comes_after_its_message_was_pruned_is_dropped(database: Database):
    endpoint(database)
    submitted(database)
    (message,) = claim(database)
    settle(database, message, GOOD)
    assert prune(database, keep_seconds=-60) == 1
    assert not record_result(database, message, GOOD, PATIENCE, jitter=1.0)
