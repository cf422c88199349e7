"""A bench for one attempt at a time: a real engine process, a real database, no Celery."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs import lifecycle, service
from jobs.auth import LOCAL
from jobs.db import Database
from jobs.views import JobView
from ppo_engine.rundir import RunDir
from tests.support.workers import LONG_LEASE, quick_settings
from worker.gauges import Gauges
from worker.lease import now
from worker.shutdown import Shutdown
from worker.supervisor import Supervisor


@dataclass
class Bench:
    """Claims jobs and supervises them in this thread or another."""

    db: Database
    home: Path
    settings: dict[str, Any] = field(default_factory=dict)
    gauges: Gauges = field(default_factory=Gauges)
    shutdown: Shutdown = field(default_factory=Shutdown)

    def take(self) -> Supervisor:
        sent_at = now()
        settings = quick_settings(self.home, "sqlite:///unused.db", **{**LONG_LEASE, **self.settings})
        claim = lifecycle.claim(self.db, worker_id="bench", queues=["default"], lease_seconds=settings.lease_seconds)
        assert claim is not None, "nothing to claim"
        return Supervisor(
            claim, claimed_at=sent_at, db=self.db, settings=settings, gauges=self.gauges, shutdown=self.shutdown
        )

    def run(self) -> None:
        self.take().run()

    def start(self) -> threading.Thread:
        thread = threading.Thread(target=self.take().run)
        thread.start()
        return thread

    def run_dir(self, job_id: str) -> RunDir:
        return RunDir(self.home / "runs" / job_id)

    def job(self, job_id: str) -> JobView:
        return service.get(self.db, LOCAL, job_id)

    def attempts(self, outcome: str, reason: str = "") -> float:
        labels = {"outcome": outcome, "reason": reason}
        return self.gauges.registry.get_sample_value("ppo_worker_attempts_total", labels) or 0.0


def error_of(job: JobView) -> dict[str, Any]:
    assert job.error is not None, "no error is reported"
    return job.error.model_dump()
