"""Has the database itself count what it takes from attempts that no longer hold their job.

A trigger looks at the token that the job has at the moment of the write, so nothing escapes that is overwritten later.
"""

from __future__ import annotations

import sqlalchemy as sa

from jobs.db import Database

_REPORTS = ("job_metrics", "job_samples", "job_checkpoints")
_CURRENT = "SELECT 1 FROM jobs WHERE id = NEW.job_id AND lease_token = NEW.lease_token"
_RULES = {
    **dict.fromkeys(_REPORTS, ("INSERT", f"NOT EXISTS ({_CURRENT} AND state = 'running')")),
    # The state has changed already when an attempt is closed; and none is closed twice.
    "job_attempts": ("UPDATE", f"OLD.end_time IS NOT NULL OR NOT EXISTS ({_CURRENT})"),
}
_NOTE = "INSERT INTO stale_writes VALUES ('{table}', NEW.job_id, NEW.lease_token)"


def watch(db: Database) -> None:
    """Begin to count, in a database of the tests' own."""
    with db.schema_change() as connection:
        connection.exec_driver_sql("CREATE TABLE stale_writes (of_table TEXT, job_id TEXT, lease_token INTEGER)")
        for table, (happening, stale) in _RULES.items():
            note = _NOTE.format(table=table)
            trigger = f"CREATE TRIGGER watch_{table} AFTER {happening} ON {table} FOR EACH ROW"
            if connection.dialect.name == "sqlite":
                connection.exec_driver_sql(f"{trigger} WHEN {stale} BEGIN {note}; END")
            else:
                body = f"BEGIN IF {stale} THEN {note}; END IF; RETURN NULL; END"
                function = f"CREATE FUNCTION watch_{table}() RETURNS trigger LANGUAGE plpgsql AS $$ {body} $$"
                connection.exec_driver_sql(function)
                connection.exec_driver_sql(f"{trigger} EXECUTE FUNCTION watch_{table}()")


def stale_writes(db: Database) -> int:
    """How many such writes the database has taken since `watch`."""
    with db.read() as session:
        return int(session.scalar(sa.text("SELECT count(*) FROM stale_writes")) or 0)
