"""The store in a database: its features together, and opening it."""

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
    """`base.Store` in a database with a checked schema; made by `open_store`.

    Args:
        database: The database.
        where: Host and process, stored with attempts and requests; `None`: of this process.
        cipher: Encrypts messages; `None`: they are stored in clear text.
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
        """Remove this process from the live ones if the database answers, and close all connections."""
        with contextlib.suppress(TransientStoreError):
            self.owners.leave()
        self.database.close()


def open_store(url: str | URL, *, where: str | None = None, cipher: Cipher | None = None) -> SqlStore:
    """Open the store at a URL. On SQLite, missing and outdated tables are created and upgraded.

    Args:
        url: An SQLAlchemy URL for SQLite or PostgreSQL.
        where: Host and process, stored with attempts and requests; `None`: of this process.
        cipher: Encrypts messages; `None`: they are stored in clear text.

    Raises:
        ConfigurationError: The URL can't be used.
        StoreSchemaError: The schema is newer than this package, or older, and the database isn't SQLite.
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
