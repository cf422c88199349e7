"""Installations to hurt, and the table of faults after the tests."""

from __future__ import annotations

import resource
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.support import fault_table
from tests.support.invariants import check_invariants
from tests.support.servers import Postgres, Redis
from tests.support.stale_writes import watch
from tests.support.workers import Stack, stack

# Minutes of real training; `make test` kills one worker under the real engine in tests/e2e.
collect_ignore = [] if fault_table.FULL else ["test_real_weights.py"]


@pytest.fixture(params=["embedded", "cluster"])
def installed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stack]:
    """An installation in each profile, whose invariants hold at the end of the test.

    Embedded: SQLite with Celery on `memory://`. Cluster: PostgreSQL with Redis.
    """
    cluster = request.param == "cluster"
    database_url = request.getfixturevalue("postgres_url" if cluster else "sqlite_url")
    broker_url = request.getfixturevalue("redis_url") if cluster else "memory://"
    with stack(tmp_path / "home", database_url, broker_url) as one:
        watch(one.db)
        yield one
        check_invariants(one.db)


@pytest.fixture
def own_redis() -> Iterator[Redis]:
    """A Redis of this test's own, not yet started."""
    server = Redis()
    yield server
    server.close()


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """A PostgreSQL of this test's own that keeps what it confirmed."""
    server = Postgres(durable=True)
    server.start()
    yield server
    server.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Note in a test's rows what it cost, with its fixtures: the end of a stack waits for the processes."""
    before, began, used = len(fault_table.ROWS), time.monotonic(), _cpu_seconds()
    result = yield
    for row in fault_table.ROWS[before:]:
        row.wall_seconds, row.cpu_seconds = time.monotonic() - began, _cpu_seconds() - used
    fault_table.write()
    return result


def _cpu_seconds() -> float:
    """Of this process, and of those it started that have ended."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in usage)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if fault_table.ROWS:
        terminalreporter.section("faults")
        for line in fault_table.text():
            terminalreporter.write_line(line)
