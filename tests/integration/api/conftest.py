"""The front door over a real database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.db import Database
from tests.support.databases import copy_sqlite
from tests.support.http_api import App, Process, Served, app_on, process_on, served_on, settings


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The service's folder, with one model folder under its root."""
    model = tmp_path / "models" / "tiny"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"")
    return tmp_path


@pytest.fixture
def app(database: Database, database_url: str, home: Path) -> Iterator[App]:
    """The app in this process, on each kind of database, without keys."""
    with app_on(database, settings(home, database_url)) as running:
        yield running


@pytest.fixture
def sqlite_app(sqlite_url: str, home: Path) -> Iterator[App]:
    """The same on SQLite only, for what does not depend on the database."""
    db = Database(sqlite_url)
    with app_on(db, settings(home, sqlite_url)) as running:
        yield running
    db.dispose()


@pytest.fixture(scope="module")
def refusing(sqlite_template_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    """One app for all tests of a module whose requests are refused and so leave nothing behind."""
    home = tmp_path_factory.mktemp("refusing")
    url = copy_sqlite(sqlite_template_file, home)
    db = Database(url)
    with app_on(db, settings(home, url)) as running:
        yield running
    db.dispose()


@pytest.fixture
def served(database: Database, database_url: str, home: Path) -> Iterator[Served]:
    """Both doors on free ports, on each kind of database, without keys."""
    with served_on(database, settings(home, database_url, http_port=0, grpc_port=0)) as running:
        yield running


@pytest.fixture
def sqlite_process(sqlite_url: str, home: Path) -> Iterator[Process]:
    """`python -m api` on SQLite, without keys."""
    with process_on(home, sqlite_url) as running:
        yield running
