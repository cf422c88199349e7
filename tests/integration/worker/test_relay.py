"""Wake-ups through a real Redis."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
import redis
from celery import Celery

from jobs.db import Database
from tests.support.workers import submit_script
from worker import tasks
from worker.app import create_app
from worker.relay import publish_due
from worker.settings import WorkerSettings

pytestmark = pytest.mark.slow


@pytest.fixture
def app(redis_url: str, tmp_path: Path) -> Celery:
    return create_app(WorkerSettings(home=tmp_path, broker_url=redis_url), publisher=True)


def waiting(redis_url: str, queue: str) -> list[bytes]:
    with redis.Redis.from_url(redis_url) as client:
        return client.lrange(f"ppo:wake.{queue}", 0, -1)


def test_each_job_is_woken_once_and_again_later(database: Database, app: Celery, redis_url: str) -> None:
    first = submit_script(database)
    other = submit_script(database, overrides={"resources": {"queue": "h200"}})
    assert publish_due(database, app, rewake_seconds=60) == 2
    assert publish_due(database, app, rewake_seconds=60) == 0
    (message,) = waiting(redis_url, "default")
    assert first.encode() in _body(message)
    assert other.encode() in _body(*waiting(redis_url, "h200"))


def test_a_message_carries_an_id_and_nothing_of_the_spec(database: Database, app: Celery, redis_url: str) -> None:
    submit_script(database, overrides={"name": "confidential"})
    publish_due(database, app, rewake_seconds=60)
    (message,) = waiting(redis_url, "default")
    assert b"confidential" not in _body(message) + message


def test_a_backlog_does_not_fill_the_broker(
    database: Database, app: Celery, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "_FULL", 3)
    for _ in range(2):
        submit_script(database)
    for _ in range(5):
        publish_due(database, app, rewake_seconds=0)
    assert len(waiting(redis_url, "default")) == 4, "two rounds of two, then none"


def _body(message: bytes) -> bytes:

    return base64.b64decode(json.loads(message)["body"])
