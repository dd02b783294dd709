"""The store in a database: combines the features, and opens a store."""

from __future__ import annotations

import contextlib
import os
import socket
import uuid

from sqlalchemy import URL

from airflow_provider_jmsjca.errors import JmsError, TransientStoreError
from airflow_provider_jmsjca.store.sql.activations import SqlActivations
from airflow_provider_jmsjca.store.sql.attempts import SqlAttempts
from airflow_provider_jmsjca.store.sql.database import Database
from airflow_provider_jmsjca.store.sql.handled import SqlHandledIds
from airflow_provider_jmsjca.store.sql.limbo import Cipher, SqlLimbo
from airflow_provider_jmsjca.store.sql.owners import SqlOwners


class SqlStore:
    """`base.Store` in a database with a checked schema; `open_store` creates it.

    Args:
        database: The database.
        where: Host and process, stored with attempts and requests; `None`: those of this process.
        cipher: Encrypts messages in limbo; `None`: they are stored in clear text.
    """

    def __init__(self, database: Database, *, where: str | None = None, cipher: Cipher | None = None) -> None:
        self.database = database
        # A process in a container may have the same id as the one before it.
        own = f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex[:8]}"
        self.where = own if where is None else where
        self.attempts = SqlAttempts(database, self.where)
        self.owners = SqlOwners(database, self.where)
        self.handled = SqlHandledIds(database)
        self.limbo = SqlLimbo(database, cipher)
        self.activations = SqlActivations(database, self.where, self.owners)
        self.transaction = database.transaction

    def close(self) -> None:
        """Close all connections, and remove this process from the live processes if the database answers."""
        with contextlib.suppress(TransientStoreError):
            self.owners.leave()
        self.database.close()


def open_store(url: str | URL, *, where: str | None = None, cipher: Cipher | None = None) -> SqlStore:
    """Open the store at a URL. On SQLite, this creates missing tables and upgrades outdated ones.

    Args:
        url: An SQLAlchemy URL for SQLite or PostgreSQL.
        where: Host and process, stored with attempts and requests; `None`: those of this process.
        cipher: Encrypts messages in limbo; `None`: they are stored in clear text.

    Raises:
        ConfigurationError: The URL can't be used.
        StoreSchemaError: The schema is newer than this package. Or it is older or missing, and the database
            isn't SQLite.
        TransientStoreError: The database can't be used now.
    """
    database = Database(url)
    try:
        if database.is_sqlite:
            database.upgrade_if_older()
        database.check()
    except JmsError:
        database.close()
        raise
    return SqlStore(database, where=where, cipher=cipher)
