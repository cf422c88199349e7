"""`python -m worker` as an operator sees it: which jobs it takes, what it shows, how it leaves."""

from __future__ import annotations

import signal
import urllib.request
from pathlib import Path

import pytest

from jobs import service
from jobs.auth import LOCAL
from jobs.states import JobState
from tests.support.invariants import check_invariants
from tests.support.servers import wait_until
from tests.support.workers import stack, submit_script, wait_for_state


@pytest.mark.slow
def test_a_worker_from_start_to_end(sqlite_url: str, tmp_path: Path) -> None:
    with stack(tmp_path / "home", sqlite_url) as installed:
        low = submit_script(installed.db)
        high = submit_script(installed.db, overrides={"resources": {"priority": 10}})
        elsewhere = submit_script(installed.db, overrides={"resources": {"queue": "h200", "priority": 100}})
        worker = installed.start_worker(worker_id="w1")
        first, second = wait_for_state(installed.db, high), wait_for_state(installed.db, low)
        assert (first.state, second.state) == (JobState.SUCCEEDED, JobState.SUCCEEDED), installed.logs()
        assert first.start_time is not None
        assert second.start_time is not None
        assert first.start_time < second.start_time, "the more urgent one goes first"
        assert service.get(installed.db, LOCAL, elsewhere).state is JobState.QUEUED, "it does not serve that queue"

        (row,) = service.workers(installed.db)
        assert (row.id, row.slots, row.queues) == ("w1", 1, ["default"])
        with urllib.request.urlopen(str(row.metrics_url), timeout=30) as answer:
            text = answer.read().decode()
        assert 'ppo_worker_attempts_total{outcome="succeeded",reason=""} 2.0' in text
        assert "ppo_worker_busy_slots 0.0" in text

        worker.send_signal(signal.SIGTERM)
        assert worker.wait(15) == 0, installed.logs()
        assert service.workers(installed.db) == []
        check_invariants(installed.db)


@pytest.mark.slow
def test_a_worker_without_a_database_waits_for_one(tmp_path: Path) -> None:
    """Nothing listens there: it must neither end nor spin, and still end when told."""
    with stack(tmp_path / "home", "postgresql://nobody@127.0.0.1:9/none") as installed:
        worker = installed.start_worker()
        wait_until(lambda: "the database cannot be reached" in installed.logs(), 60, installed.logs)
        assert worker.poll() is None
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(20) == 0, installed.logs()
