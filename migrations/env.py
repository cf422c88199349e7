"""Alembic's entry: `jobs.migrate` hands over its connection, the `alembic` command takes the settings' database."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import context

from jobs.clock import UtcDateTime
from jobs.db import Database
from jobs.settings import DomainSettings
from jobs.tables import Base


def run(connection: sa.Connection) -> None:
    """Run the wanted migrations in the transaction that `connection` is in."""
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_as_batch=connection.dialect.name == "sqlite",
        compare_server_default=True,
        render_item=_render,
    )
    with context.begin_transaction():
        context.run_migrations()


def _render(kind: str, item: Any, context: Any) -> str | bool:
    """Write our types as plain ones: a migration must not change when the code does."""
    if kind == "type" and isinstance(item, UtcDateTime):
        return "sa.DateTime(timezone=True)"
    if kind == "type" and isinstance(item, sa.JSON):
        context.imports.add("from sqlalchemy.dialects import postgresql")
        return 'sa.JSON().with_variant(postgresql.JSONB(), "postgresql")'
    return False


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    with Database(DomainSettings().database_url).schema_change() as own:
        run(own)
