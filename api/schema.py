"""Whether the database has the tables that this version of the service needs."""

from __future__ import annotations

from jobs.db import Database
from jobs.migrate import revisions

HOW_TO_MIGRATE = "the database's tables are not at this version: run `python -m jobs.admin migrate`"


def is_current(db: Database) -> bool:
    """Whether no migration of this version is missing; raises Unavailable.

    Tables of a newer version will do: migrations add, so that old and new front doors serve beside each other.
    """
    return not revisions(db).is_behind
