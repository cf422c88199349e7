"""Bring the tables to the state that this version of the service needs."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config

import migrations
from jobs.db import Database


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


def alembic_config() -> Config:
    """Alembic's settings. Migrations are found as a package, so the working directory does not matter."""
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__path__[0])).replace("%", "%%"))
    return config
