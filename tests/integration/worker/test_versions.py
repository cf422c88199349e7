"""What holds while old and new versions meet: code on older tables, code on newer tables."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from api.schema import is_current
from api.server import check_start
from api.settings import ApiSettings
from jobs import admin
from jobs.db import Database
from jobs.migrate import downgrade
from jobs.states import JobState
from tests.support.workers import stack, submit_script, wait_for_state


def previous_revision(url: str) -> None:
    db = Database(url)
    downgrade(db, "-1")
    db.dispose()


@pytest.mark.slow
@pytest.mark.parametrize("module", ["worker", "worker.relay"])
def test_on_older_tables_it_refuses_to_start(sqlite_url: str, tmp_path: Path, module: str) -> None:
    previous_revision(sqlite_url)
    with stack(tmp_path / "home", sqlite_url) as installed:
        process = installed.start(["-m", module], {})
        assert process.wait(20) == 2, installed.logs()
        assert "python -m jobs.admin migrate" in installed.logs()


def newer_tables(db: Database) -> None:
    """A later version's migration: a revision unknown here, and columns that this version does not write."""
    with db.schema_change() as connection:
        for table in ("jobs", "job_attempts", "job_checkpoints", "workers"):
            connection.execute(sa.text(f"ALTER TABLE {table} ADD COLUMN of_tomorrow TEXT"))
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))


@pytest.mark.slow
def test_on_newer_tables_a_worker_goes_on_and_starts(sqlite_url: str, tmp_path: Path) -> None:
    with stack(tmp_path / "home", sqlite_url) as installed:
        installed.start_worker()
        wait_for_state(installed.db, submit_script(installed.db))
        newer_tables(installed.db)
        on_the_way = submit_script(installed.db)
        assert wait_for_state(installed.db, on_the_way).state is JobState.SUCCEEDED, installed.logs()
        installed.processes[0].kill()
        installed.start_worker()
        assert wait_for_state(installed.db, submit_script(installed.db)).state is JobState.SUCCEEDED, installed.logs()


def test_on_newer_tables_a_front_door_is_ready(sqlite_url: str, tmp_path: Path) -> None:
    db = Database(sqlite_url)
    newer_tables(db)
    assert is_current(db)
    check_start(ApiSettings(home=tmp_path, database_url=sqlite_url), db)
    downgraded = Database(sqlite_url)
    with downgraded.transaction() as session:
        session.execute(sa.text("UPDATE alembic_version SET version_num = '0001'"))
    assert not is_current(db)
    for handle in (db, downgraded):
        handle.dispose()


def test_newer_tables_are_not_migrated(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db = Database(sqlite_url)
    newer_tables(db)
    monkeypatch.setenv("PPO_HOME", str(tmp_path))
    monkeypatch.setenv("PPO_DATABASE_URL", sqlite_url)
    assert admin.main(["migrate"]) == 1
    assert "newer version" in capsys.readouterr().err
    db.dispose()
