"""No use case reads the whole table of jobs: SQLite's own plans say so."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from jobs import audit, datasets, keys, webhooks
from jobs.auth import OPERATOR, authenticate, create_key
from jobs.dataset_rows import DatasetFormat
from jobs.db import Database
from jobs.dispatch import prune
from jobs.errors import DatasetInUse
from jobs.lifecycle import claim, due_wakeups, heartbeat, reap, record_checkpoint, record_step, succeed
from jobs.quotas import Limits, quota
from jobs.service import (
    attempts,
    cancel,
    count_by_state,
    events,
    get,
    health,
    list_jobs,
    live_metrics,
    metrics,
    pause,
    samples,
    stop,
    submit,
    update,
)
from jobs.states import JobState
from jobs.updating import JobPatch
from ppo_engine.egress import NO_HOST_ALLOWED
from tests.support.attempts import ANN, checkpoint, claimed, record_steps, step, submitted
from tests.support.http_api import PEPPER
from tests.support.receivers import claim as outbox_claim
from tests.support.specs import make_spec


@contextmanager
def plans() -> Iterator[list[str]]:
    """Query plans of everything executed meanwhile."""
    found: list[str] = []

    def explain(connection: sa.Connection, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if statement.split(maxsplit=1)[0] in ("SELECT", "UPDATE", "DELETE"):
            driver = connection.connection.driver_connection
            assert isinstance(driver, sqlite3.Connection)
            found.extend(row[3] for row in driver.execute(f"EXPLAIN QUERY PLAN {statement}", parameters))

    sa.event.listen(sa.Engine, "before_cursor_execute", explain)
    yield found
    sa.event.remove(sa.Engine, "before_cursor_execute", explain)


def delete_held_dataset(db: Database) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _delete_held_dataset(db, Path(folder))


def _delete_held_dataset(db: Database, folder: Path) -> None:
    with datasets.Upload(folder, 1000) as upload:
        upload.write(b'{"prompt": "x"}')
        dataset, _ = datasets.add(db, ANN, upload, name="x", kind=DatasetFormat.JSONL)
    submitted(db, prompts={"dataset": {"id": dataset.id}})
    with pytest.raises(DatasetInUse):
        datasets.delete(db, ANN, dataset.id, folder)


USES: dict[str, Callable[[Database, str, Any], Any]] = {
    "get": lambda db, job, _: get(db, ANN, job),
    "list": lambda db, job, _: list_jobs(db, ANN),
    "list by state": lambda db, job, _: list_jobs(db, ANN, states=[JobState.QUEUED]),
    "list by label": lambda db, job, _: list_jobs(db, ANN, labels={"team": "a"}),
    "events": lambda db, job, _: events(db, ANN, job),
    "metrics": lambda db, job, _: metrics(db, ANN, job),
    "samples": lambda db, job, _: samples(db, ANN, job),
    "submit": lambda db, job, _: submit(db, ANN, make_spec(), roots=[], limits=Limits(1, 9)),
    "quota": lambda db, job, _: quota(db, "ann", Limits()),
    "keys": lambda db, job, _: keys.page(db, OPERATOR),
    "all keys": lambda db, job, _: keys.page(db, OPERATOR, everybody=True),
    "key": lambda db, job, _: authenticate(db, create_key(db, "ann", PEPPER), PEPPER),
    "audit": lambda db, job, _: audit.entries(db),
    "audit of an owner": lambda db, job, _: audit.entries(db, owner="ann"),
    "audit of a target": lambda db, job, _: audit.entries(db, target=job),
    "prune": lambda db, job, _: audit.prune(db, days=1),
    "cancel": lambda db, job, _: cancel(db, ANN, job),
    "pause": lambda db, job, _: pause(db, ANN, job),
    "stop": lambda db, _, lease: stop(db, ANN, lease.job_id),
    "update": lambda db, job, _: update(db, ANN, job, JobPatch(labels={"team": "b"})),
    "attempts": lambda db, _, lease: attempts(db, ANN, lease.job_id),
    "health": lambda db, _, lease: health(db, ANN, lease.job_id),
    "claim": lambda db, job, _: claim(db, worker_id="w", queues=["default"], lease_seconds=60),
    "claim within a quota": lambda db, job, _: claim(
        db, worker_id="w", queues=["default"], lease_seconds=60, limits=Limits(1, 1)
    ),
    "claim one": lambda db, job, _: claim(db, worker_id="w", queues=["default"], lease_seconds=60, job_id=job),
    "heartbeat": lambda db, job, lease: heartbeat(db, lease, lease_seconds=60),
    "step": lambda db, job, lease: record_step(db, lease, step(3)),
    "checkpoint": lambda db, job, lease: record_checkpoint(db, lease, checkpoint(2)),
    "succeed": lambda db, job, lease: succeed(db, lease),
    "reap": lambda db, job, _: reap(db),
    "wake": lambda db, job, _: due_wakeups(db, every_seconds=0),
    "list datasets": lambda db, job, _: datasets.list_datasets(db, ANN),
    "delete a dataset": lambda db, job, _: delete_held_dataset(db),
    "live": lambda db, job, _: live_metrics(db),
    "count": lambda db, job, _: count_by_state(db),
    "webhooks": lambda db, job, _: webhooks.list_webhooks(db, ANN),
    "deliveries": lambda db, job, _: webhooks.deliveries(db, ANN, webhooks.list_webhooks(db, ANN).items[0].id),
    "deliveries of a message": lambda db, job, _: webhooks.deliveries(
        db, ANN, webhooks.list_webhooks(db, ANN).items[0].id, message_id="msg_" + "0" * 26
    ),
    "due messages": lambda db, job, _: outbox_claim(db),
    "old messages": lambda db, job, _: prune(db, keep_seconds=60),
}


@pytest.mark.parametrize("name", USES)
def test_every_use_case_finds_its_rows_by_an_index(sqlite_url: str, name: str) -> None:
    db = Database(sqlite_url)
    submitted(db, labels={"team": "a"})
    document = {"url": "https://hooks.example.com/", "event_types": ["*"]}
    webhooks.create(db, ANN, document, pepper=PEPPER, egress=NO_HOST_ALLOWED)
    held = claimed(db)
    record_steps(db, held, 1, 2)
    waiting = submitted(db, labels={"team": "a"})
    with plans() as found:
        USES[name](db, waiting, held.lease)
    assert found
    tables = ("SCAN job", "SCAN dataset", "SCAN webhook")
    scans = [plan for plan in found if plan.startswith(tables) and "COVERING INDEX" not in plan]
    # A page of all rows walks along an index, and ends after a page.
    scans += [plan for plan in found if plan.startswith(("SCAN api_keys", "SCAN audit")) and "USING INDEX" not in plan]
    assert scans == []
    db.dispose()
