"""Whether the database has the tables that this version of the service needs."""

from __future__ import annotations

from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from jobs.db import Database
from jobs.migrate import alembic_config

HOW_TO_MIGRATE = "the database's tables are not at this version: run `python -m jobs.admin migrate`"


def is_current(db: Database) -> bool:
    """Compare the database's revision with the newest migration; raises Unavailable."""
    head = ScriptDirectory.from_config(alembic_config()).get_current_head()
    with db.read() as session:
        return MigrationContext.configure(session.connection()).get_current_revision() == head
