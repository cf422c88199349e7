"""Fixtures of all tests: real databases and brokers, one server a session, one database a test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from jobs.db import Database
from tests.support.databases import copied_postgres, copy_sqlite, postgres_template, sqlite_template
from tests.support.servers import Postgres, Redis

# Developers' machines often set it; users' do not, and there a line that is not flushed never comes.
os.environ.pop("PYTHONUNBUFFERED", None)

# A slow or busy machine is no defect.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

BOTH = ["sqlite", pytest.param("postgres", marks=pytest.mark.slow)]


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """A running PostgreSQL."""
    server = Postgres()
    server.start()
    yield server
    server.close()


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Redis]:
    """A running Redis."""
    server = Redis()
    server.start()
    yield server
    server.close()


@pytest.fixture(scope="session")
def postgres_template_name(postgres_server: Postgres) -> str:
    return postgres_template(postgres_server)


@pytest.fixture(scope="session")
def sqlite_template_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sqlite_template(tmp_path_factory.mktemp("sqlite"))


@pytest.fixture
def sqlite_url(sqlite_template_file: Path, tmp_path: Path) -> str:
    """URL of a fresh migrated SQLite database."""
    return copy_sqlite(sqlite_template_file, tmp_path)


@pytest.fixture
def postgres_url(postgres_server: Postgres, postgres_template_name: str) -> Iterator[str]:
    """URL of a fresh migrated PostgreSQL database."""
    with copied_postgres(postgres_server, postgres_template_name) as url:
        yield url


@pytest.fixture(params=BOTH)
def database_url(request: pytest.FixtureRequest) -> str:
    """URL of a fresh migrated database: the test runs once on each kind."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture(params=BOTH)
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of a database without tables: the test runs once on each kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'empty.db'}"
    else:
        with copied_postgres(request.getfixturevalue("postgres_server")) as url:
            yield url


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """A handle on a fresh migrated database: the test runs once on each kind."""
    db = Database(database_url)
    yield db
    db.dispose()


@pytest.fixture
def redis_url(redis_server: Redis) -> str:
    """URL of an empty Redis."""
    redis_server.flush()
    return redis_server.url
