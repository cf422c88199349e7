"""The commands of docs/operations.md, run as they stand there: a service is backed up, lost, restored, and goes on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from jobs import service
from jobs.auth import LOCAL
from jobs.states import JobState
from jobs.views import JobView
from tests.support.databases import copy_sqlite
from tests.support.invariants import check_invariants
from tests.support.servers import Postgres
from tests.support.source_tree import ROOT
from tests.support.workers import stack, submit_script, wait_for_state, wait_for_step

PAGE = (ROOT / "docs/operations.md").read_text("utf-8")


def run_block(name: str, folder: Path, environment: Mapping[str, str]) -> None:
    """Run the commands under `<!-- run: NAME -->`; the first that fails ends them."""
    [block] = re.findall(rf"<!-- run: {name} -->\n```sh\n(.*?)```", PAGE, re.DOTALL)
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("PPO_", "PG"))}
    path = f"{Path(sys.executable).parent}:{environment.get('PATH', '')}:{inherited['PATH']}"
    known = {**inherited, **environment, "PATH": path, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["sh", "-euc", block], cwd=folder, env=known, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"


def test_sqlite(sqlite_template_file: Path, tmp_path: Path) -> None:
    home = tmp_path / "var"
    home.mkdir()
    shutil.move(copy_sqlite(sqlite_template_file, home).removeprefix("sqlite:///"), home / "ppo.db")
    journey(tmp_path, f"sqlite:///{home}/ppo.db", "sqlite", {}, lose=lambda: None)


@pytest.mark.slow
def test_postgres(postgres_server: Postgres, postgres_url: str, tmp_path: Path) -> None:
    (tmp_path / "var").mkdir()
    url = make_url(postgres_url)
    name = str(url.database)
    libpq = {"PGHOST": "127.0.0.1", "PGPORT": str(url.port), "PGUSER": str(url.username), "PGDATABASE": name}
    environment = {**libpq, "PPO_DATABASE_URL": postgres_url, "PATH": str(postgres_server.programs)}

    def lose() -> None:
        postgres_server.drop_database(name)
        postgres_server.create_database(name)

    journey(tmp_path, postgres_url, "postgres", environment, lose=lose)


def journey(folder: Path, url: str, kind: str, environment: Mapping[str, str], *, lose) -> None:
    """One job has ended, one runs and one waits when the backup is made."""
    home = folder / "var"
    with stack(home, url) as installed:
        installed.start_worker()
        ended = submit_script(installed.db)
        wait_for_state(installed.db, ended)
        running = submit_script(installed.db, steps=400, step_seconds=0.1)
        waiting = submit_script(installed.db, overrides={"resources": {"queue": "later"}})
        wait_for_step(installed.db, running, 4)
        run_block(f"backup {kind}", folder, environment)
        before = jobs_of(installed)
        files = checkpoint_files(home, ended)
    shutil.rmtree(home)
    lose()
    run_block(f"restore {kind}", folder, environment)
    assert checkpoint_files(home, ended) == files
    with stack(home, url) as restored:
        after = jobs_of(restored)
        assert {job_id: after[job_id] for job_id in (ended, waiting)} == {
            job_id: before[job_id] for job_id in (ended, waiting)
        }
        restored.start_worker(queues="default,later", slots=2)
        assert wait_for_state(restored.db, waiting).state is JobState.SUCCEEDED, restored.logs()
        step = after[running].progress.step
        assert after[running].state is JobState.RUNNING
        wait_for_step(restored.db, running, step + 3)
        attempts = service.attempts(restored.db, LOCAL, running).items
        assert max(attempt.from_step for attempt in attempts) >= 2, "it goes on, and does not begin anew"
        check_invariants(restored.db)


def jobs_of(installed) -> dict[str, JobView]:
    return {job.id: job for job in service.list_jobs(installed.db, LOCAL).items}


def checkpoint_files(home: Path, job_id: str) -> dict[str, bytes]:
    root = home / "runs" / job_id / "checkpoints"
    found = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert found
    return found
