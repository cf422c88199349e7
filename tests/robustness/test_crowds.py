"""Far more wake-ups than jobs, and many processes on one SQLite file."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from jobs import service
from jobs.db import Database
from jobs.states import TERMINAL
from tests.support.attempts import ANN, submitted
from tests.support.fault_runs import attempts_of, overlapping, settle
from tests.support.fault_table import SEED, chance, count, row
from tests.support.invariants import check_invariants
from tests.support.mixed_load import COUNTER
from tests.support.servers import wait_until
from tests.support.stale_writes import stale_writes, watch
from tests.support.workers import LONG_LEASE, stack, submit_script
from worker.app import create_app
from worker.settings import WorkerSettings
from worker.tasks import wake, wake_queue

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def test_doubled_and_reordered_wake_ups_run_every_job_once(sqlite_url: str, redis_url: str, tmp_path: Path) -> None:
    """The workers start on a queue that is full of messages, and read it to its end."""
    table = row("wake-ups doubled and reordered")
    with stack(tmp_path / "home", sqlite_url, redis_url) as installed:
        watch(installed.db)
        jobs = [submit_script(installed.db) for _ in range(count(6, 100))]
        app = create_app(WorkerSettings(home=tmp_path, broker_url=redis_url), publisher=True)
        messages = jobs * count(20, 100)
        chance("wake-ups").shuffle(messages)
        for job_id in messages:
            wake(app, job_id, "default")
        table.injected = len(messages)
        for name in ("a", "b"):
            installed.start_worker(worker_id=name, slots=4, poll_seconds=600, **LONG_LEASE)

        def waiting() -> int:
            with app.connection_for_write() as connection:
                return int(connection.default_channel.queue_declare(wake_queue("default").name).message_count)

        settle(installed, jobs, table, once=True, seconds=count(60, 300), steps=6)
        wait_until(lambda: waiting() == 0, count(60, 600), installed.logs)
        assert len(attempts_of(installed.db)) == len(jobs), "the messages that came late found nothing to do"


def test_many_processes_share_one_sqlite_file(sqlite_url: str) -> None:
    """They add to one counter of a job's labels, each only if nobody else has since it looked: no addition is lost."""
    table, db = row("SQLite under mixed load of many processes"), Database(sqlite_url)
    watch(db)
    shared = submitted(db, resources={"queue": "idle"})
    processes, seconds = count(3, 8), count(2, 60)
    command = [sys.executable, "-m", "tests.support.mixed_load", sqlite_url, shared, str(seconds)]
    started = [
        subprocess.Popen([*command, str(index), str(SEED)], stdout=subprocess.PIPE, text=True)
        for index in range(processes)
    ]
    done: Counter[str] = Counter()
    for process in started:
        answer, _ = process.communicate(timeout=seconds + 120)
        assert process.returncode == 0, answer
        done.update(json.loads(answer))
    table.injected, table.jobs = sum(done.values()), done["submit"]
    table.stale = stale_writes(db)
    table.doubled = overlapping(attempts_of(db))
    table.lost = done["add"] - int(service.get(db, ANN, shared).labels[COUNTER])
    table.lost += done["end"] - sum(service.count_by_state(db).get(state, 0) for state in TERMINAL)
    check_invariants(db)
    db.dispose()
    assert (done["refused"], table.lost, table.doubled, table.stale) == (0, 0, 0, 0), done
    assert done["add"] > 0
