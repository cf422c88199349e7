"""A worker that was told to make room does so by itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from jobs.clock import db_time
from jobs.tables import Job
from tests.support.servers import wait_until
from tests.support.workers import stack, submit_script, wait_for_state


@pytest.mark.slow
def test_old_checkpoints_go_if_the_operator_wants_it(sqlite_url: str, tmp_path: Path) -> None:
    with stack(tmp_path / "home", sqlite_url) as installed:
        worker = installed.start_worker()
        job_id = submit_script(installed.db)
        wait_for_state(installed.db, job_id)
        worker.kill()
        with installed.db.transaction() as session:
            session.execute(sa.update(Job).values(end_time=db_time(-86400 * 8)))
        run_dir = installed.run_dir(job_id)
        assert len(run_dir.saved_checkpoints()) == 2
        installed.start_worker(prune_days=7)
        wait_until(lambda: len(run_dir.saved_checkpoints()) == 1, 60, installed.logs)
        assert run_dir.spec.exists()
