"""Runs the revisions on the connection of `Database.upgrade`, in its transaction."""

from __future__ import annotations

from alembic import context

from airflow_provider_jmsjca.store.sql.tables import METADATA, VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    version_table=VERSION_TABLE,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
