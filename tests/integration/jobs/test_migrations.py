"""Migrations on both databases: up, down, up with rows, two at once, and no drift from the tables in the code."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from jobs.db import Database
from jobs.migrate import downgrade, migrate
from jobs.tables import Base
from tests.support.attempts import claimed, record_steps_and_checkpoint, submitted
from tests.support.invariants import check_invariants


def tables(db: Database) -> set[str]:
    with db.schema_change() as connection:
        return set(sa.inspect(connection).get_table_names())


def test_up_down_up_with_rows(empty_database_url: str) -> None:
    db = Database(empty_database_url)
    for _ in range(2):
        migrate(db)
        assert tables(db) == {*Base.metadata.tables, "alembic_version"}
        submitted(db, labels={"team": "a"})
        record_steps_and_checkpoint(db, claimed(db), 1, 2)
        check_invariants(db)
        downgrade(db, "base")
        assert tables(db) == {"alembic_version"}
    db.dispose()


def test_migrating_again_changes_nothing(database: Database) -> None:
    submitted(database)
    migrate(database)
    claimed(database)


def test_two_migrators_do_not_collide(empty_database_url: str) -> None:
    handles = [Database(empty_database_url) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(migrate, handles))
    submitted(handles[0])
    for handle in handles:
        handle.dispose()


def test_the_migrations_make_the_tables_of_the_code(database: Database) -> None:
    with database.schema_change() as connection, warnings.catch_warnings():
        warnings.simplefilter("error")
        context = MigrationContext.configure(connection, opts={"compare_server_default": True})
        assert compare_metadata(context, Base.metadata) == []


def test_the_migrations_make_the_constraints_of_the_code(empty_database_url: str) -> None:
    """Alembic does not compare CHECKs."""
    db = Database(empty_database_url)
    migrate(db)
    migrated = checks(db)
    downgrade(db, "base")
    with db.schema_change() as connection:
        Base.metadata.create_all(connection)
    assert checks(db) == migrated
    assert len(migrated["jobs"]) == 6
    db.dispose()


def checks(db: Database) -> dict[str, list[tuple[str, str]]]:
    """Name and text of every CHECK of every table."""
    with db.schema_change() as connection:
        inspector = sa.inspect(connection)
        return {
            table: sorted((str(check["name"]), check["sqltext"]) for check in inspector.get_check_constraints(table))
            for table in Base.metadata.tables
        }


@pytest.mark.slow
def test_the_command_works_from_any_folder(tmp_path: Path) -> None:
    environment = {**os.environ, "PPO_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "jobs.admin", "migrate"]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    db = Database(f"sqlite:///{tmp_path / 'home' / 'ppo.db'}")
    submitted(db)
    db.dispose()
