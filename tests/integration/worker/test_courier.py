"""Messages of webhooks on their way to real receivers on this machine."""

from __future__ import annotations

import json
import signal
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from jobs import webhooks
from jobs.clock import db_time
from jobs.db import Database
from jobs.lifecycle import succeed
from jobs.webhook_tables import WebhookMessage
from jobs.webhook_views import DeliveryView
from tests.support.attempts import ANN, claimed, submitted
from tests.support.http_api import PEPPER
from tests.support.receivers import courier_settings, genuine, told
from tests.support.scripted_http import Asked, Reply, serve
from tests.support.servers import wait_until
from tests.support.workers import stack, submit_script
from worker.courier import Courier

OK = Reply(200, b"thanks")


@pytest.fixture
def db(sqlite_url: str) -> Iterator[Database]:
    database = Database(sqlite_url)
    yield database
    database.dispose()


@pytest.fixture
def egress(tmp_path: Path, sqlite_url: str):
    return courier_settings(tmp_path, sqlite_url).webhook_egress


@contextmanager
def sending(db: Database, url: str, home: Path, **values: object) -> Iterator[Courier]:
    """A sender at work."""
    courier = Courier(db, courier_settings(home, url, **values))
    courier.start()
    try:
        yield courier
    finally:
        courier.stop()


def endpoint(db: Database, url: str, egress, **values: object) -> webhooks.NewWebhookView:
    """An endpoint of ann's for every event."""
    document = {"url": url, "event_types": ["*"], **values}
    return webhooks.create(db, ANN, document, pepper=PEPPER, egress=egress)


def log(db: Database, webhook_id: str) -> list[DeliveryView]:
    """Attempts, oldest first."""
    return webhooks.deliveries(db, ANN, webhook_id).items[::-1]


def wait_for_attempts(db: Database, webhook_id: str, count: int) -> list[DeliveryView]:
    wait_until(lambda: len(log(db, webhook_id)) >= count, 60, lambda: str(log(db, webhook_id)))
    return log(db, webhook_id)


def ids(asked: list[Asked]) -> list[str]:
    return [request.headers["webhook-id"] for request in asked]


def test_a_job_is_told_from_its_submit_to_its_end(db: Database, sqlite_url: str, tmp_path: Path, egress):
    with serve([OK] * 10) as receiver, sending(db, sqlite_url, tmp_path):
        hook = endpoint(db, f"{receiver.url}/in?token=a", egress)
        job_id = submitted(db, labels={"team": "a"})
        succeed(db, claimed(db, job_id).lease)
        attempts = wait_for_attempts(db, hook.id, 3)
    assert sorted(told(request.body) for request in receiver.asked) == [
        ("job.claimed", job_id, 2),
        ("job.submitted", job_id, 1),
        ("job.succeeded", job_id, 3),
    ]
    assert all(genuine(request.headers, request.body, hook.secret) for request in receiver.asked)
    assert not any(genuine(request.headers, request.body + b" ", hook.secret) for request in receiver.asked)
    assert {request.path for request in receiver.asked} == {"/in?token=a"}
    last = next(json.loads(request.body) for request in receiver.asked if b"job.succeeded" in request.body)
    assert (last["data"]["job"]["state"], last["data"]["job"]["labels"]) == ("succeeded", {"team": "a"})
    assert [(item.status, item.answer, item.outcome, item.error) for item in attempts] == [
        (200, "thanks", "delivered", None)
    ] * 3


def test_a_failed_delivery_is_tried_again_under_the_same_id(db: Database, sqlite_url: str, tmp_path: Path, egress):
    with serve([Reply(500, b"x" * 2000), Reply(drop=True), OK]) as receiver:
        hook = endpoint(db, receiver.url, egress)
        submitted(db)
        with sending(db, sqlite_url, tmp_path):
            attempts = wait_for_attempts(db, hook.id, 3)
    assert [(item.attempt, item.status) for item in attempts] == [(1, 500), (2, None), (3, 200)]
    assert attempts[0].answer == "x" * 512
    assert attempts[1].error == "the connection failed: RemoteProtocolError"
    assert len(set(ids(receiver.asked))) == 1
    assert len({request.body for request in receiver.asked}) == 1
    assert webhooks.get(db, ANN, hook.id).failing_since is None


def test_a_rotated_secret_and_the_one_before_both_sign(db: Database, sqlite_url: str, tmp_path: Path, egress):
    with serve([OK] * 3) as receiver, sending(db, sqlite_url, tmp_path):
        hook = endpoint(db, receiver.url, egress)
        fresh = webhooks.rotate_secret(db, ANN, hook.id, pepper=PEPPER).secret
        submitted(db)
        wait_for_attempts(db, hook.id, 1)
        newest = webhooks.rotate_secret(db, ANN, hook.id, pepper=PEPPER).secret
        submitted(db)
        wait_for_attempts(db, hook.id, 2)
    first, second = receiver.asked
    verdicts = [[genuine(r.headers, r.body, s) for s in (hook.secret, fresh, newest)] for r in (first, second)]
    assert verdicts == [[True, True, False], [False, True, True]]


def test_a_redirect_leads_nowhere(db: Database, sqlite_url: str, tmp_path: Path, egress):
    with serve([OK]) as inside, serve([Reply(302, headers={"Location": inside.url})]) as receiver:
        hook = endpoint(db, receiver.url, egress)
        submitted(db)
        with sending(db, sqlite_url, tmp_path, webhook_first_retry_seconds=60):
            (attempt,) = wait_for_attempts(db, hook.id, 1)
        assert (attempt.status, attempt.error, inside.asked) == (302, "a redirect; they are not followed", [])


def test_an_address_inside_is_never_called(db: Database, sqlite_url: str, tmp_path: Path):
    """A name that means this machine: only the lookup at delivery can know."""
    with serve([OK]) as receiver:
        port = receiver.url.rsplit(":", 1)[1]
        submitted(db, notify=[{"url": f"http://localhost:{port}/"}])
        (hook,) = webhooks.list_webhooks(db, ANN).items
        webhooks.send_test(db, ANN, hook.id)
        with sending(db, sqlite_url, tmp_path, webhook_hosts=[], webhook_first_retry_seconds=60):
            attempt = wait_for_attempts(db, hook.id, 1)[0]
        assert receiver.asked == []
    assert attempt.error is not None
    assert attempt.error.endswith("which is not a public address")


def test_a_closed_port_is_written_down(db: Database, sqlite_url: str, tmp_path: Path, egress):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        hook = endpoint(db, f"http://127.0.0.1:{closed.getsockname()[1]}/", egress)
        submitted(db)
        with sending(db, sqlite_url, tmp_path, webhook_first_retry_seconds=60):
            (attempt,) = wait_for_attempts(db, hook.id, 1)
    assert attempt.status is None
    assert attempt.error is not None
    assert attempt.error.startswith("no connection")
    assert attempt.outcome is None
    assert webhooks.get(db, ANN, hook.id).failing_since is not None


def test_a_receiver_that_drips_is_cut_and_holds_up_nobody(db: Database, sqlite_url: str, tmp_path: Path, egress):
    with dripping() as slow, serve([OK] * 30) as receiver:
        drip = endpoint(db, slow, egress)
        hook = endpoint(db, receiver.url, egress)
        for _ in range(20):
            submitted(db)
        with sending(db, sqlite_url, tmp_path, webhook_timeout_seconds=3, webhook_first_retry_seconds=60):
            wait_for_attempts(db, hook.id, 20)
            assert log(db, drip.id) == [], "all of the others are through before the first of these is cut"
            cut = wait_for_attempts(db, drip.id, 4)
    assert {item.error for item in cut} == {"no answer within 3 s"}
    assert all(item.duration_seconds > 2.9 for item in cut)


@contextmanager
def dripping() -> Iterator[str]:
    """A server that sends a header line now and then, and never an end."""
    stop = threading.Event()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(b"HTTP/1.1 200 OK\r\n")
            while not stop.wait(0.05):
                try:
                    self.request.sendall(b"x-more: 1\r\n")
                except OSError:
                    return

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        stop.set()
        server.shutdown()


def test_two_senders_send_each_message_once(db: Database, sqlite_url: str, tmp_path: Path, egress):
    with serve([OK] * 60) as receiver:
        hook = endpoint(db, receiver.url, egress)
        for _ in range(30):
            submitted(db)
        with sending(db, sqlite_url, tmp_path), sending(db, sqlite_url, tmp_path):
            wait_for_attempts(db, hook.id, 30)
            time.sleep(0.2)
    assert len(receiver.asked) == len(set(ids(receiver.asked))) == 30


def test_a_message_is_sent_again_when_its_owner_asks(db: Database, sqlite_url: str, tmp_path: Path, egress):
    with serve([OK] * 2) as receiver, sending(db, sqlite_url, tmp_path):
        hook = endpoint(db, receiver.url, egress)
        message_id = webhooks.send_test(db, ANN, hook.id).message_id
        (attempt,) = wait_for_attempts(db, hook.id, 1)
        assert webhooks.redeliver(db, ANN, hook.id, attempt.id).message_id == message_id
        wait_for_attempts(db, hook.id, 2)
    assert ids(receiver.asked) == [message_id] * 2
    assert json.loads(receiver.asked[0].body)["type"] == "webhook.test"


@pytest.mark.slow
def test_a_relay_that_is_killed_while_it_sends_loses_nothing(db: Database, sqlite_url: str, tmp_path: Path, egress):
    """Committed, claimed, on the wire, killed: the next relay sends it, with the same id."""
    hangs, goes_on = threading.Event(), threading.Event()
    with stack(tmp_path / "home", sqlite_url) as installed, silent(hangs, goes_on) as url:
        hook = endpoint(db, url, egress)
        message_id = webhooks.send_test(db, ANN, hook.id).message_id
        settings = {"webhook_hosts": "127.0.0.1", "webhook_poll_seconds": 0.1}
        relay = installed.start_relay(**settings)
        assert hangs.wait(20), installed.logs()
        relay.kill()
        relay.wait()
        goes_on.set()
        assert log(db, hook.id) == []
        with db.transaction() as session:  # let the claim run out
            session.execute(sa.update(WebhookMessage).values(next_attempt_time=db_time(-1)))
        second = installed.start_relay(**settings)
        (attempt,) = wait_for_attempts(db, hook.id, 1)
        assert (attempt.message_id, attempt.attempt, attempt.status) == (message_id, 2, 200)
        second.send_signal(signal.SIGTERM)
        assert second.wait(15) == 0, installed.logs()


@contextmanager
def silent(hangs: threading.Event, goes_on: threading.Event) -> Iterator[str]:
    """A receiver that takes a message and says nothing until it is let."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65536)
            hangs.set()
            if goes_on.wait(30):
                self.request.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


@pytest.mark.slow
def test_an_embedded_worker_tells_of_the_jobs_that_it_runs(sqlite_url: str, tmp_path: Path):
    with serve([OK] * 5) as receiver, stack(tmp_path / "home", sqlite_url) as installed:
        job_id = submit_script(installed.db, overrides={"notify": [{"url": receiver.url}]})
        installed.start_worker(webhook_hosts="127.0.0.1", webhook_poll_seconds=0.1)
        wait_until(lambda: bool(receiver.asked), 60, installed.logs)
    (asked,) = receiver.asked
    assert told(asked.body)[:2] == ("job.succeeded", job_id)
