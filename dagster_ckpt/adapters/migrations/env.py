"""Alembic's environment: migrates over the connection, and inside the transaction, it is handed."""

from __future__ import annotations

from alembic import context

from dagster_ckpt.adapters.sql_database import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
)
with context.begin_transaction():
    context.run_migrations()
