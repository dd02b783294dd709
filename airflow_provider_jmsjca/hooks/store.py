"""Where the store of this installation is."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from airflow.sdk.configuration import conf
from airflow.sdk.crypto import get_fernet
from airflow.sdk.exceptions import AirflowException
from sqlalchemy import URL

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.store.sql.database import Database
from airflow_provider_jmsjca.store.sql.limbo import Cipher
from airflow_provider_jmsjca.store.sql.store import SqlStore, open_store

_DEFAULT = "jms-store.db"


def store_url() -> str | URL:
    """Return what `[jmsjca] store_url` says, by default the SQLite file `jms-store.db` under AIRFLOW_HOME."""
    if said := str(conf.get("jmsjca", "store_url", fallback="")).strip():
        return said
    home = Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser()
    return URL.create("sqlite", database=str(home / _DEFAULT))


def store_in_use() -> bool:
    """Say whether there is a store: its URL is configured, or somebody has made the default one."""
    url = store_url()
    return not isinstance(url, URL) or Path(url.database or "").exists()


def store_database() -> Database:
    """Return the database of the store, whatever its schema.

    Raises:
        ConfigurationError: `[jmsjca] store_url` can't be used.
    """
    return Database(store_url())


@contextlib.contextmanager
def store_for(spec: ActivationSpec) -> Iterator[SqlStore | None]:
    """Open the store of this installation for a spec that uses it; `None` for any other.

    Raises:
        ConfigurationError: As of `installed_store`.
        TransientStoreError: It can't be used now.
    """
    store = installed_store() if spec.use_store else None
    try:
        yield store
    finally:
        if store is not None:
            store.close()


def installed_store() -> SqlStore:
    """Open the store of this installation; close it when it isn't used any more.

    Messages in it are encrypted with Airflow's `[core] fernet_key`, where one is set.

    Raises:
        ConfigurationError: `[jmsjca] store_url` or `[core] fernet_key` can't be used.
        StoreSchemaError: Its tables are missing, older or newer; the text says what to do.
        TransientStoreError: It can't be used now.
    """
    return open_store(store_url(), cipher=_cipher())


def _cipher() -> Cipher | None:
    # Without an airflow.cfg a task's process sees the template that Airflow fills in for others.
    if str(conf.get("core", "fernet_key", fallback="")) in {"", "{FERNET_KEY}"}:
        return None
    try:
        return get_fernet()
    except AirflowException as error:
        raise ConfigurationError(f"[core] fernet_key can't be used: {error}") from error
