"""Whether the database has the tables that this version of the service needs."""

from __future__ import annotations

from jobs.db import Database
from jobs.migrate import revisions

HOW_TO_MIGRATE = "the database's tables are not at this version: run `python -m jobs.admin migrate`"


def is_current(db: Database) -> bool:
    """Compare the database's revision with the newest migration; raises Unavailable."""
    found = revisions(db)
    return found.current == found.newest
