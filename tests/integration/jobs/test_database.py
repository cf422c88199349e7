"""Transactions: all or nothing, honest about a lost connection, and never 'database is locked'."""

from __future__ import annotations

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from jobs.clock import db_time
from jobs.db import Database
from jobs.errors import Unavailable
from jobs.tables import Worker
from tests.support.servers import free_port


def add_worker(db: Database, name: str) -> None:
    add_workers(db, name)


def add_workers(db: Database, *names: str) -> None:
    with db.transaction() as session:
        for name in names:
            session.add(Worker(id=name, host="h", slots=1, busy=0, queues=[]))
            session.flush()


def names(db: Database) -> list[str]:
    with db.read() as session:
        return list(session.scalars(sa.select(Worker.id).order_by(Worker.id)))


def test_an_exception_leaves_nothing_behind(database: Database) -> None:
    add_worker(database, "w1")
    with pytest.raises(sa.exc.IntegrityError):
        add_workers(database, "w2", "w1")
    assert names(database) == ["w1"]


def test_reading_cannot_write(database: Database) -> None:
    with database.read() as session:
        session.add(Worker(id="w", host="h", slots=1, busy=0, queues=[]))
    assert names(database) == []


def test_a_reader_waits_for_no_writer(database: Database) -> None:
    with database.transaction() as session:
        session.add(Worker(id="w", host="h", slots=1, busy=0, queues=[]))
        session.flush()
        assert names(database) == []
    assert names(database) == ["w"]


def test_read_modify_write_loses_nothing_between_threads(database: Database) -> None:
    add_worker(database, "w")

    def bump(_: int) -> None:
        with database.transaction() as session:
            worker = session.scalars(sa.select(Worker).where(Worker.id == "w").with_for_update()).one()
            worker.busy += 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(bump, range(80)))
    with database.read() as session:
        assert session.get_one(Worker, "w").busy == 80


def test_the_clock_is_the_databases_and_times_are_utc(database: Database) -> None:
    with database.read() as session:
        now, later = session.execute(sa.select(db_time(), db_time(90.5))).one()
    assert later - now == pytest.approx(timedelta(seconds=90.5), abs=timedelta(milliseconds=100))
    assert abs(now - datetime.now(UTC)) < timedelta(seconds=30)
    assert now.tzinfo is UTC


def test_a_time_reads_back_as_it_was_written(database: Database) -> None:
    add_worker(database, "w")
    moment = datetime(2030, 1, 2, 3, 4, 5, 600_000, UTC)
    with database.transaction() as session:
        session.get_one(Worker, "w").update_time = moment
    with database.read() as session:
        assert session.get_one(Worker, "w").update_time == moment
        assert session.scalar(sa.select(Worker.id).where(Worker.update_time > db_time())) == "w"


def test_a_database_that_answers_is_available(database: Database) -> None:
    database.ping()


def test_a_server_that_is_not_there_is_unavailable() -> None:
    db = Database(f"postgresql://postgres:secret@127.0.0.1:{free_port()}/ppo")
    with pytest.raises(Unavailable) as caught:
        db.ping()
    assert "secret" not in caught.value.message
    with pytest.raises(Unavailable):
        add_worker(db, "w")


def test_a_lock_that_is_not_given_up_is_unavailable_and_no_raw_error(sqlite_url: str) -> None:
    db = Database(sqlite_url)
    other = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable):
        write_impatiently(db)
    other.close()


def write_impatiently(db: Database) -> None:
    with db.read() as session:
        session.connection().exec_driver_sql("PRAGMA busy_timeout=0")
        session.connection().exec_driver_sql("UPDATE workers SET busy = 1")


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "mysql://h/d"])
def test_other_databases_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="must be sqlite"):
        Database(url)


def test_sqlite_is_set_up_to_survive(sqlite_url: str) -> None:
    with Database(sqlite_url).read() as session:
        pragmas = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        found = [session.connection().exec_driver_sql(f"PRAGMA {pragma}").scalar() for pragma in pragmas]
    assert found == ["wal", 2, 1, 30_000]


def test_a_writer_begins_immediately(sqlite_url: str) -> None:
    """Two transactions that read and then write both come through: the second waits before it reads."""
    db = Database(sqlite_url)
    add_worker(db, "w")
    second = threading.Thread(target=_bump, args=(db,))
    with db.transaction() as session:
        worker = session.get_one(Worker, "w")
        second.start()
        second.join(0.2)
        assert second.is_alive()
        worker.busy += 1
    second.join()
    with db.read() as session:
        assert session.get_one(Worker, "w").busy == 2


def _bump(db: Database) -> None:
    with db.transaction() as session:
        session.get_one(Worker, "w").busy += 1


def test_opening_a_new_file_waits_for_who_prepares_it(tmp_path: Path) -> None:
    """SQLite refuses to switch a file to WAL at once while another writes to it, whatever its busy timeout."""
    file = tmp_path / "new.db"
    other = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    other.execute("CREATE TABLE t (x)")
    ending = threading.Timer(0.3, other.execute, ["COMMIT"])
    ending.start()
    db = Database(f"sqlite:///{file}")
    db.ping()
    ending.join()
    db.dispose()
    other.close()
