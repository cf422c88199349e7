"""The database: one engine, one kind of transaction, the only commit.

Two databases with one meaning. On SQLite a transaction begins with BEGIN IMMEDIATE: a deferred one fails with "database
is locked" as soon as two processes read and then write, and the driver's default loses updates silently. Only the clock
of the database is ever compared (`db_time`), so the clocks of workers do not matter.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, DisconnectionError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import ConnectionPoolEntry

from jobs.errors import InvalidArgument, Unavailable

_BUSY_SECONDS = 30
_TRUSTED_SECONDS = 0.1
"""A connection that worked so recently is taken to work still: no server restarts in that time."""
_MIGRATION_LOCK = 7_025_513_861
"""Key of the advisory lock that migrators queue for; an arbitrary number, the same for ever."""

_POSTGRES_OPTIONS = "-c statement_timeout=30s -c lock_timeout=10s -c idle_in_transaction_session_timeout=60s"


class Database:
    """A handle on the database; safe to share between threads, made anew in every process.

    Raises:
        ValueError: a URL of another kind of database, or of an SQLite database in memory or where none can be.
    """

    def __init__(self, url: str) -> None:
        try:
            parsed = _normal(make_url(url))
        except ArgumentError:  # its text repeats the URL, with the password
            raise ValueError("database_url is no URL: write sqlite:///FILE or postgresql://…") from None
        self._engine = _sqlite_engine(parsed) if parsed.get_backend_name() == "sqlite" else _postgres_engine(parsed)
        self._write = sessionmaker(self._engine, expire_on_commit=False)
        reader = self._engine.execution_options(**_reading(self._engine))
        self._read = sessionmaker(reader, expire_on_commit=False)

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """Commit at the end of the block, roll back on an exception.

        Raises:
            Unavailable: the database cannot be reached. If that happened during the commit, it may have been made.
        """
        with _told(), self._write() as session:
            yield session
            session.commit()

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Statements that only read; on SQLite they wait for no writer."""
        with _told(), self._read() as session:
            yield session

    def ping(self) -> None:
        """Raise Unavailable unless the database answers."""
        with self.read() as session:
            session.execute(sa.text("SELECT 1"))

    def dispose(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    @contextmanager
    def schema_change(self) -> Iterator[Connection]:
        """One transaction that may change tables; a second migrator waits until it has ended."""
        with _told(), self._engine.connect() as connection:
            if self._engine.dialect.name == "sqlite":
                with _without_foreign_keys(connection), connection.begin():
                    yield connection
            else:
                with connection.begin():
                    connection.exec_driver_sql("SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = '10min'")
                    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
                    yield connection


def _normal(url: URL) -> URL:
    backend = url.get_backend_name()
    if backend in ("postgres", "postgresql"):
        return url.set(drivername="postgresql+psycopg")
    if backend != "sqlite" or not url.database or url.database == ":memory:":
        raise ValueError("database_url must be sqlite:///FILE or postgresql://…")
    return url


_engine = partial(sa.create_engine, json_serializer=partial(json.dumps, allow_nan=False))


def _postgres_engine(url: URL) -> Engine:
    connect = {
        "connect_timeout": 5,
        "application_name": "ppo-service",
        "options": _POSTGRES_OPTIONS,
        "keepalives_idle": 10,
        "tcp_user_timeout": 15_000,
    }
    engine = _engine(url, pool_size=10, max_overflow=40, pool_timeout=10, pool_use_lifo=True, connect_args=connect)
    event.listen(engine, "checkin", _note_use)
    event.listen(engine, "checkout", partial(_ping_after_a_pause, engine))
    return engine


def _note_use(_connection: object, record: ConnectionPoolEntry) -> None:
    record.info["used_at"] = time.monotonic()


def _ping_after_a_pause(engine: Engine, connection: Any, record: ConnectionPoolEntry, _proxy: object) -> None:
    """Replace a connection that died while it lay idle. One used a moment ago is not asked: that costs a round trip."""
    used_at = record.info.get("used_at")
    if used_at is None or time.monotonic() - used_at < _TRUSTED_SECONDS:
        return
    try:
        engine.dialect.do_ping(connection)
    except engine.dialect.loaded_dbapi.Error as error:
        raise DisconnectionError("it died while it was idle") from error


def _sqlite_engine(url: URL) -> Engine:
    folder = Path(str(url.database)).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{folder} cannot hold the database: {error.strerror}") from error
    engine = _engine(url, pool_size=10, max_overflow=40, pool_timeout=10, connect_args={"timeout": _BUSY_SECONDS})
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # the driver must not begin transactions of its own
    _use_wal(connection)
    for pragma in ("synchronous=FULL", "foreign_keys=ON", "trusted_schema=OFF"):
        connection.execute(f"PRAGMA {pragma}")


def _use_wal(connection: sqlite3.Connection) -> None:
    """Of two that switch a new file at the same moment, SQLite refuses one at once, whatever its busy timeout."""
    deadline = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def _begin_sqlite(connection: Connection) -> None:
    readonly = connection.get_execution_options().get("readonly", False)
    connection.exec_driver_sql("BEGIN" if readonly else "BEGIN IMMEDIATE")


def _reading(engine: Engine) -> dict[str, Any]:
    """PostgreSQL reads each statement's own snapshot, in a transaction or not; without one, two round trips less."""
    return {"isolation_level": "AUTOCOMMIT"} if engine.dialect.name == "postgresql" else {"readonly": True}


@contextmanager
def _without_foreign_keys(connection: Connection) -> Iterator[None]:
    """SQLite alters a table by copying and dropping it, which would cascade; inside a transaction it is too late."""
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)  # noqa: S101 - narrows a type
    driver.execute("PRAGMA foreign_keys=OFF")
    try:
        yield
    finally:
        driver.execute("PRAGMA foreign_keys=ON")


@contextmanager
def _told() -> Iterator[None]:
    """Turn errors of the connection into Unavailable, and values that no column takes (a NUL character, a number beyond
    64 bits) into InvalidArgument; the driver's text may hold addresses and values, and stays in the cause.
    """
    try:
        yield
    except (OperationalError, InterfaceError, PoolTimeout) as error:
        raise Unavailable("the database cannot be reached, or is busy") from error
    except DataError as error:
        raise InvalidArgument(
            "a value of the request cannot be looked up or stored; has it a NUL character?"
        ) from error
    except DBAPIError as error:
        if error.connection_invalidated:
            raise Unavailable("the connection to the database was lost") from error
        raise
