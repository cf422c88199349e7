"""The doctor on a service that is well, and on one with each fault planted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa
from pydantic import SecretStr

from jobs import admin
from jobs.auth import create_key
from jobs.clock import db_time
from jobs.db import Database
from jobs.diagnosis import Finding, Level, as_text, worst
from jobs.doctor import examine
from jobs.fleet import beat_worker
from jobs.lifecycle import record_started
from jobs.places import judge_space
from jobs.principal import Scope
from jobs.settings import DomainSettings
from jobs.tables import ApiKey, Job, Worker
from tests.support.attempts import claimed, started, submitted

PEPPER = SecretStr("pepper")


def set_up(db: Database, database_url: str, home: Path) -> DomainSettings:
    """A service that is well: folders, a worker, an administrator's key."""
    for name in ("runs", "datasets", "models"):
        (home / name).mkdir(parents=True)
    beat(db, "w1")
    create_key(db, "ann", PEPPER, scopes=[Scope.ADMIN])
    return DomainSettings(home=home, database_url=database_url, key_pepper=PEPPER)


def beat(db: Database, worker_id: str, **changed: int) -> None:
    beat_worker(db, worker_id, host="h", metrics_url=None, slots=2, busy=1, queues=["default"], **changed)


def execute(db: Database, *statements: sa.Executable) -> None:
    with db.transaction() as session:
        for statement in statements:
            session.execute(statement)


def bad(findings: list[Finding]) -> list[tuple[str, str]]:
    """Check and level of everything that is not all right; free space depends on the machine."""
    return [(found.check, found.level.value) for found in findings if found.level != "ok" and found.check != "disk"]


def test_all_is_well(database: Database, database_url: str, tmp_path: Path) -> None:
    settings = set_up(database, database_url, tmp_path / "home")
    submitted(database)
    held = claimed(database, worker_id="w1")
    record_started(database, held.lease, started())
    submitted(database)
    findings = examine(database, settings)
    assert bad(findings) == []
    text = as_text(findings)
    assert "w1: 1 of 2 slots busy, queues default, device cpu" in text
    assert "1 in queue default" in text
    assert {found.check for found in findings} == {
        "database", "migrations", "clock", "workers", "queues", "leases", "keys", "webhooks", "home", "runs",
        "datasets", "disk",
    }  # fmt: skip


def no_worker(db: Database) -> None:
    execute(db, sa.delete(Worker))


def silent_worker(db: Database) -> None:
    beat(db, "w2")
    execute(db, sa.update(Worker).where(Worker.id == "w2").values(update_time=db_time(-100)))


def unserved_queue(db: Database) -> None:
    submitted(db, resources={"queue": "h200"})


def expired_lease(db: Database) -> None:
    submitted(db)
    claimed(db)
    execute(db, sa.update(Job).values(lease_expire_time=db_time(-100)))


def revoked_keys(db: Database) -> None:
    execute(db, sa.update(ApiKey).values(revoke_time=db_time()))


def no_administrator(db: Database) -> None:
    execute(db, sa.update(ApiKey).values(scopes="read"))


def ending_key(db: Database) -> None:
    execute(db, sa.update(ApiKey).values(expire_time=db_time(3600)))


def unequal_limits(db: Database) -> None:
    beat(db, "w2", max_running_jobs=3)


def older_tables(db: Database) -> None:
    execute(db, sa.text("UPDATE alembic_version SET version_num = '0001'"))


def newer_tables(db: Database) -> None:
    execute(db, sa.text("UPDATE alembic_version SET version_num = '9999'"))


@pytest.mark.parametrize(
    ("fault", "check", "level", "advice"),
    [
        (no_worker, "workers", "failure", "python -m worker"),
        (silent_worker, "workers", "warning", "log"),
        (unserved_queue, "queues", "failure", "PPO_QUEUES=h200"),
        (expired_lease, "leases", "failure", "reap failed"),
        (revoked_keys, "keys", "failure", "create-key"),
        (no_administrator, "keys", "warning", "--scope admin"),
        (ending_key, "keys", "warning", "new ones"),
        (unequal_limits, "workers", "warning", "same value"),
        (older_tables, "migrations", "failure", "jobs.admin migrate"),
        (newer_tables, "migrations", "warning", "newer version"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_each_fault_is_seen_and_says_what_to_do(
    sqlite_url: str, tmp_path: Path, fault: Callable[[Database], None], check: str, level: str, advice: str
) -> None:
    db = Database(sqlite_url)
    settings = set_up(db, sqlite_url, tmp_path / "home")
    fault(db)
    findings = examine(db, settings)
    assert bad(findings) == [(check, level)], as_text(findings)
    [found] = [found for found in findings if found.check == check and found.level == level]
    assert advice in found.advice
    db.dispose()


def test_a_missing_file_is_told_and_not_made(tmp_path: Path) -> None:
    file = tmp_path / "elsewhere" / "ppo.db"
    db = Database(f"sqlite:///{file}")
    findings = examine(db, DomainSettings(home=tmp_path, database_url=f"sqlite:///{file}"))
    assert ("database", "failure") in bad(findings)
    assert not file.exists()


def test_a_server_that_is_away_costs_no_password(tmp_path: Path) -> None:
    url = "postgresql://ann:hunter22@127.0.0.1:9/none"
    db = Database(url)
    findings = examine(db, DomainSettings(home=tmp_path, database_url=url))
    assert ("database", "failure") in bad(findings)
    assert "hunter22" not in as_text(findings)


def test_a_folder_that_is_a_file(sqlite_url: str, tmp_path: Path) -> None:
    db = Database(sqlite_url)
    settings = set_up(db, sqlite_url, tmp_path / "home")
    settings.runs_dir.rmdir()
    settings.runs_dir.write_text("")
    settings.model_roots[0].rmdir()
    assert bad(examine(db, settings)) == [("runs", "failure"), ("models", "warning")]
    db.dispose()


@pytest.mark.parametrize(
    ("free_bytes", "free_files", "checkpoint_bytes", "level"),
    [
        (100e9, None, 0, "ok"),
        (5e9, None, 0, "warning"),
        (0.5e9, None, 0, "failure"),
        (100e9, 500, 0, "failure"),
        (100e9, None, 30e9, "warning"),
        (100e9, None, 60e9, "failure"),
    ],
)
def test_what_free_space_means(
    free_bytes: float, free_files: int | None, checkpoint_bytes: float, level: str, tmp_path: Path
) -> None:
    found = judge_space(
        tmp_path, free_bytes=int(free_bytes), free_files=free_files, checkpoint_bytes=int(checkpoint_bytes)
    )
    assert found.level == level


def test_the_operators_command(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    db = Database(sqlite_url)
    settings = set_up(db, sqlite_url, tmp_path / "home")
    monkeypatch.setenv("PPO_HOME", str(settings.home))
    monkeypatch.setenv("PPO_DATABASE_URL", sqlite_url)
    assert admin.main(["doctor"]) == 0
    assert "ok       leases" in capsys.readouterr().out
    unserved_queue(db)
    assert admin.main(["doctor", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["level"] == "failure"
    assert {"check", "level", "text", "advice"} == set(told["findings"][0])
    db.dispose()


def test_the_worst_decides() -> None:
    assert worst([]) is Level.OK
    assert worst([Finding("a", Level.FAILURE, ""), Finding("b", Level.OK, "")]) is Level.FAILURE
