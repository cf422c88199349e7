"""With 100,000 finished jobs in the table, what the front door reads is read by an index, and only what it shows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from jobs import lifecycle
from jobs.db import Database
from jobs.service import events, get, list_jobs, metrics
from jobs.states import JobState
from tests.conftest import BOTH
from tests.support.attempts import ANN, claimed, record_steps, submitted
from tests.support.databases import copied_postgres, copy_sqlite

pytestmark = pytest.mark.slow

JOBS = 100_000
MOST_ROWS = 1000
"""A page has 50 jobs; an index on states or labels gives some more that are not shown."""

SERIES = {
    "sqlite": f"(WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {JOBS}) SELECT n FROM s)",
    "postgresql": f"(SELECT n FROM generate_series(1, {JOBS}) AS s(n))",
}
NUMBER = {"sqlite": "printf('%026d', n)", "postgresql": "lpad(n::text, 26, '0')"}


@pytest.fixture(scope="module", params=BOTH)
def crowded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Database, str]]:
    """A database full of copies of one job, and that job."""
    if request.param == "sqlite":
        url = copy_sqlite(request.getfixturevalue("sqlite_template_file"), tmp_path_factory.mktemp("scale"))
        yield from _filled(url)
    else:
        server, template = map(request.getfixturevalue, ("postgres_server", "postgres_template_name"))
        with copied_postgres(server, template) as url:
            yield from _filled(url)


def _filled(url: str) -> Iterator[tuple[Database, str]]:
    db = Database(url)
    job_id = submitted(db, labels={"team": "a"})
    held = claimed(db, job_id)
    record_steps(db, held, 1, 2)
    lifecycle.succeed(db, held.lease)
    with db.transaction() as session:
        engine = session.connection().dialect.name
        for table in ("jobs", "job_labels", "job_events", "job_metrics"):
            _multiply(session, engine, table)
        session.execute(sa.text("ANALYZE"))
    yield db, job_id
    db.dispose()


def _multiply(session: Any, engine: str, table: str) -> None:
    """Copy the rows of the one job for JOBS further ones, with a small spec."""
    key = "id" if table == "jobs" else "job_id"
    columns = [column["name"] for column in sa.inspect(session.connection()).get_columns(table)]
    small = '\'{"labels": {"team": "a"}}\'' + ("::jsonb" if engine == "postgresql" else "")
    changed = {key: f"'job_' || {NUMBER[engine]}", "spec": small}
    chosen = ", ".join(changed.get(name, f't."{name}"') for name in columns)
    names = ", ".join(f'"{name}"' for name in columns)
    one = "" if table in ("jobs", "job_labels") else f" WHERE t.{'seq' if table == 'job_events' else 'step'} = 1"
    statement = f"INSERT INTO {table} ({names}) SELECT {chosen} FROM {table} t CROSS JOIN {SERIES[engine]} s{one}"
    session.connection().exec_driver_sql(statement.replace("%", "%%") if engine == "postgresql" else statement)


@contextmanager
def plans() -> Iterator[list[str]]:
    """Plans of every statement, on PostgreSQL with the rows that were read; on SQLite the work is counted apart."""
    found: list[str] = []

    def explain(connection: sa.Connection, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if not statement.startswith("SELECT"):
            return
        cursor = connection.connection.cursor()
        if connection.dialect.name == "sqlite":
            found.extend(row[3] for row in cursor.execute(f"EXPLAIN QUERY PLAN {statement}", parameters).fetchall())
        else:
            cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", parameters)
            found.extend(_scans(cursor.fetchone()[0][0]["Plan"]))

    sa.event.listen(sa.Engine, "before_cursor_execute", explain)
    yield found
    sa.event.remove(sa.Engine, "before_cursor_execute", explain)


def _scans(node: dict[str, Any]) -> Iterator[str]:
    if "Scan" in node["Node Type"]:
        rows = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
        yield f"{node['Node Type']} {node.get('Index Name', node.get('Relation Name'))} rows={int(rows)}"
    for inner in node.get("Plans", ()):
        yield from _scans(inner)


LAST_PAGE = "am9iXzAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDYw"
"""Behind the job numbered 60."""

IDS = ("pk_jobs", "ix_jobs_owner_id_id")
STATES = ("ix_jobs_owner_id_state_id", "ix_jobs_state_next_wake_time")
LABELS = ("ix_job_labels_key_value_job_id", "pk_job_labels")
"""Indexes that do; which of two PostgreSQL takes depends on what it has counted."""

USES: dict[str, tuple[tuple[str, ...], Callable[[Database, str], Any]]] = {
    "get": (IDS, lambda db, job: get(db, ANN, job)),
    "list": (IDS, lambda db, job: list_jobs(db, ANN)),
    "last page": (IDS, lambda db, job: list_jobs(db, ANN, page_token=LAST_PAGE)),
    "list a state": ((*IDS, *STATES), lambda db, job: list_jobs(db, ANN, states=[JobState.SUCCEEDED])),
    "list a rare state": (STATES, lambda db, job: list_jobs(db, ANN, states=[JobState.RUNNING])),
    "list states": ((*IDS, *STATES), lambda db, job: list_jobs(db, ANN, states=[JobState.SUCCEEDED, JobState.QUEUED])),
    "list rare states": (STATES, lambda db, job: list_jobs(db, ANN, states=[JobState.RUNNING, JobState.QUEUED])),
    "list a label": (LABELS, lambda db, job: list_jobs(db, ANN, labels={"team": "a"})),
    "list a rare label": (LABELS, lambda db, job: list_jobs(db, ANN, labels={"team": "b"})),
    "list a label and a state": (
        LABELS,
        lambda db, job: list_jobs(db, ANN, labels={"team": "a"}, states=[JobState.SUCCEEDED], page_token=LAST_PAGE),
    ),
    "events": (("pk_job_events",), lambda db, job: events(db, ANN, job)),
    "metrics": (("pk_job_metrics",), lambda db, job: metrics(db, ANN, job)),
}


@pytest.mark.parametrize("use", USES)
def test_a_page_reads_what_it_shows_by_an_index(crowded: tuple[Database, str], use: str):
    db, job_id = crowded
    indexes, read = USES[use]
    with plans() as found, instructions(db) as counted:
        read(db, job_id)
    assert found
    assert [plan for plan in found if plan.startswith(("SCAN job", "Seq Scan job"))] == []
    named = [plan.replace("sqlite_autoindex_", "pk_").replace("_1 ", " ") for plan in found]
    assert any(index in plan for plan in named for index in indexes), found
    rows = [int(plan.rsplit("=", 1)[1]) for plan in found if "rows=" in plan]
    assert sum(rows) <= MOST_ROWS, found
    assert counted[0] <= 100, (found, counted)


@contextmanager
def instructions(db: Database) -> Iterator[list[int]]:
    """Thousands of instructions that SQLite needs; nothing is counted on PostgreSQL."""
    counted = [0]

    def count() -> int:
        counted[0] += 1
        return 0

    def watch(connection: sa.Connection, *_: Any) -> None:
        driver: Any = connection.connection.driver_connection
        if connection.dialect.name == "sqlite":
            driver.set_progress_handler(count, 1000)

    sa.event.listen(sa.Engine, "before_cursor_execute", watch)
    yield counted
    sa.event.remove(sa.Engine, "before_cursor_execute", watch)


def test_the_database_is_as_full_as_it_says(crowded: tuple[Database, str]):
    db, _ = crowded
    with db.read() as session:
        for table in ("jobs", "job_labels", "job_events", "job_metrics"):
            assert session.scalar(sa.text(f"SELECT count(*) FROM {table}")) > JOBS
    page = list_jobs(db, ANN, page_token=LAST_PAGE, page_size=200)
    assert json.dumps([job.name for job in page.items]) == json.dumps(["small"] * len(page.items))
    assert len(page.items) == 59
