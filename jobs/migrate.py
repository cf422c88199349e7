"""Bring the tables to the state that this version of the service needs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

import migrations
from jobs.db import Database
from jobs.errors import Unavailable


def migrate(database: Database, revision: str = "head") -> None:
    """Upgrade to `revision`. A second migrator waits for the first, and then finds nothing to do."""
    with database.schema_change() as connection:
        config = alembic_config()
        config.attributes["connection"] = connection
        command.upgrade(config, revision)


def downgrade(database: Database, revision: str) -> None:
    """Go back to `revision`; `base` is before the first migration."""
    with database.schema_change() as connection:
        config = alembic_config()
        config.attributes["connection"] = connection
        command.downgrade(config, revision)


@dataclass(frozen=True)
class Revisions:
    """Where the tables are, and where this version of the service wants them."""

    current: str | None
    """None: there are no tables."""
    newest: str | None
    is_behind: bool
    """Whether a migration of this version is still to be made. False for tables of a newer version."""


def revisions(db: Database) -> Revisions:
    """Compare the database's revision with the newest migration; raises Unavailable."""
    known = ScriptDirectory.from_config(alembic_config())
    newest = known.get_current_head()
    with db.read() as session:
        current = MigrationContext.configure(session.connection()).get_current_revision()
    ours = {script.revision for script in known.walk_revisions()}
    return Revisions(current, newest, current != newest and (current is None or current in ours))


def why_not_start(db: Database) -> str | None:
    """Why a process of this version must not work on these tables; None if it may, or the database is away now."""
    try:
        found = revisions(db)
    except Unavailable:
        return None
    if not found.is_behind:
        return None
    have = found.current or "none"
    return f"the tables are at revision {have}, older than {found.newest}: run `python -m jobs.admin migrate`"


def alembic_config() -> Config:
    """Alembic's settings. Migrations are found as a package, so the working directory does not matter."""
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__path__[0])).replace("%", "%%"))
    return config
