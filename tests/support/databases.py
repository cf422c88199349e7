"""Migrated databases in milliseconds: one template of each kind, copied for every test."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jobs.db import Database
from jobs.migrate import migrate
from tests.support.servers import Postgres

_TEMPLATE = "ppo_template"
_numbers = itertools.count(1)


def migrate_url(url: str) -> None:
    """Bring the database at `url` to the newest revision."""
    db = Database(url)
    migrate(db)
    db.dispose()


def sqlite_template(folder: Path) -> Path:
    """A migrated SQLite file that nothing is connected to."""
    path = folder / "template.db"
    migrate_url(f"sqlite:///{path}")
    return path


def copy_sqlite(template: Path, folder: Path) -> str:
    """A copy of the template; returns its URL."""
    path = folder / f"ppo-{next(_numbers)}.db"
    shutil.copyfile(template, path)
    return f"sqlite:///{path}"


def postgres_template(server: Postgres) -> str:
    """A migrated PostgreSQL database to copy; returns its name."""
    migrate_url(server.create_database(_TEMPLATE))
    return _TEMPLATE


@contextmanager
def copied_postgres(server: Postgres, template: str = "template0") -> Iterator[str]:
    """URL of a copy of the template, dropped at the end."""
    name = f"ppo_{os.getpid()}_{next(_numbers)}"
    yield server.create_database(name, template=template)
    server.drop_database(name)
