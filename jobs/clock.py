"""Time in the database. Only its clock is ever compared, so the clocks of workers do not matter."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator


class UtcDateTime(TypeDecorator[datetime]):
    """A moment; always aware and in UTC in Python. SQLite stores it as text that sorts by time."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None or dialect.name != "sqlite":
            return value
        return value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class db_time(FunctionElement[datetime]):  # noqa: N801 - reads as an SQL function
    """The database's clock, `offset_seconds` from now."""

    type = UtcDateTime()
    inherit_cache = True
    name = "db_time"

    def __init__(self, offset_seconds: float = 0.0) -> None:
        super().__init__(sa.literal(offset_seconds, sa.Float()))


@compiles(db_time, "postgresql")
def _postgres_time(element: db_time, compiler: SQLCompiler, **kw: Any) -> str:
    # clock_timestamp(), since now() is when the transaction began. In a subquery it is evaluated once per statement, so
    # that an index can be used.
    offset = compiler.process(element.clauses, **kw)
    return f"(SELECT clock_timestamp() + make_interval(secs => {offset}))"


@compiles(db_time, "sqlite")
def _sqlite_time(element: db_time, compiler: SQLCompiler, **kw: Any) -> str:
    offset = compiler.process(element.clauses, **kw)
    # Milliseconds are all it has; the zeros make it the same text that a bound value becomes.
    return f"strftime('%Y-%m-%d %H:%M:%f', 'now', {offset} || ' seconds') || '000'"
