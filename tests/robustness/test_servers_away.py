"""Redis forgets and restarts, Postgres restarts and crashes, again and again while jobs are submitted and run."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import sqlalchemy as sa

from jobs import fleet, service
from jobs.auth import LOCAL
from jobs.db import Database
from jobs.errors import Unavailable
from jobs.spec import JobSpec
from jobs.tables import Job
from tests.support.databases import migrate_url
from tests.support.fault_runs import settle
from tests.support.fault_table import chance, count, row
from tests.support.servers import Postgres, Redis, wait_until
from tests.support.stale_writes import watch
from tests.support.workers import LONG_LEASE, script_spec, stack, submit_script

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


PATIENT = {"retry": {"max_attempts": 100}}


def waits(db: Database) -> list[float]:
    """Seconds from submit to the first claim, of every job."""
    with db.read() as session:
        rows = session.execute(sa.select(Job.create_time, Job.start_time)).all()
    return [(row.start_time - row.create_time).total_seconds() for row in rows]


def test_a_broker_that_forgets_and_restarts_loses_no_job(sqlite_url: str, own_redis: Redis, tmp_path: Path) -> None:
    """Redis is emptied and restarted every 2 s; four jobs come in each time, at moments that the dice choose."""
    table, dice = row("Redis emptied and restarted every 2 s"), chance("redis")
    own_redis.start()
    with stack(tmp_path / "home", sqlite_url, own_redis.url) as installed:
        watch(installed.db)
        installed.start_worker(slots=4, poll_seconds=5, **LONG_LEASE)
        installed.start_relay()
        wait_until(lambda: bool(fleet.workers(installed.db)), 60, installed.logs)
        jobs = []
        for _ in range(count(3, 25)):
            began = time.monotonic()
            own_redis.flush()
            own_redis.stop()
            back = dice.uniform(0, 1)
            for moment in sorted([back, *(dice.uniform(0, 1.8) for _ in range(4))]):
                time.sleep(max(0, began + moment - time.monotonic()))
                if moment == back:
                    own_redis.start()
                else:
                    jobs.append(submit_script(installed.db, step_seconds=0.1))
            time.sleep(max(0, began + 2 - time.monotonic()))
            table.injected += 1
        settle(installed, jobs, table, once=True, steps=6)
        table.recovery_seconds = waits(installed.db)


def submit_surely(db: Database, spec: JobSpec, request_id: str) -> str:
    """Submit as a client does that tries again until it has an answer."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return service.submit(db, LOCAL, spec, roots=[], request_id=request_id)[0].id
        except Unavailable:
            assert time.monotonic() < deadline, "the database does not come back"
            time.sleep(0.1)


def test_a_database_that_restarts_and_crashes_loses_no_job(own_postgres: Postgres, tmp_path: Path) -> None:
    """Every 3 s, one time in two without a shutdown; submits go on meanwhile, and are tried again."""
    table, dice = row("PostgreSQL restarted or crashed every 3 s"), chance("postgres")
    url = own_postgres.create_database("ppo")
    migrate_url(url)
    with stack(tmp_path / "home", url) as installed:
        watch(installed.db)
        for name in ("a", "b"):
            installed.start_worker(worker_id=name, slots=3, lease_seconds=20, fence_seconds=15)
        jobs = []
        for turn in range(count(2, 20)):
            ends = time.monotonic() + 3
            for number in range(2):
                spec = script_spec(steps=20, step_seconds=dice.uniform(0.05, 0.2), overrides=PATIENT)
                jobs.append(submit_surely(installed.db, spec, f"{turn}-{number}"))
            time.sleep(dice.uniform(0, 1.5))
            began = time.monotonic()
            own_postgres.crash() if dice.random() < 0.5 else own_postgres.stop()
            time.sleep(dice.uniform(0, 1))
            own_postgres.start()
            table.recovery_seconds.append(time.monotonic() - began)
            table.injected += 1
            time.sleep(max(0, ends - time.monotonic()))
        settle(installed, jobs, table, once=True, seconds=180, steps=20)
