"""The store of this installation; SQLAlchemy and its tables are loaded only when the store is used."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from airflow.sdk.configuration import conf
from airflow.sdk.crypto import get_fernet
from airflow.sdk.exceptions import AirflowException

from airflow_provider_jmsjca.errors import ConfigurationError

if TYPE_CHECKING:
    from sqlalchemy import URL

    from airflow_provider_jmsjca.core.activation import ActivationSpec
    from airflow_provider_jmsjca.store.sql.database import Database
    from airflow_provider_jmsjca.store.sql.limbo import Cipher
    from airflow_provider_jmsjca.store.sql.store import SqlStore

_DEFAULT = "jms-store.db"


def store_url() -> str | URL:
    """Return `[jmsjca] store_url`, by default the SQLite file `jms-store.db` under AIRFLOW_HOME."""
    from sqlalchemy import URL  # noqa: PLC0415 - see above

    if configured := str(conf.get("jmsjca", "store_url", fallback="")).strip():
        return configured
    home = Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser()
    return URL.create("sqlite", database=str(home / _DEFAULT))


def store_in_use() -> bool:
    """Return whether there is a store: its URL is configured, or the default file exists."""
    url = store_url()
    return isinstance(url, str) or Path(url.database or "").exists()


def store_database() -> Database:
    """Return the database of the store without checking its schema.

    Raises:
        ConfigurationError: `[jmsjca] store_url` can't be used.
    """
    from airflow_provider_jmsjca.store.sql.database import Database  # noqa: PLC0415 - see above

    return Database(store_url())


@contextlib.contextmanager
def store_for(spec: ActivationSpec) -> Iterator[SqlStore | None]:
    """Open the store of this installation for a `with` block, if the spec uses a store; else yield `None`.

    Raises:
        ConfigurationError: The store's settings can't be used; see `installed_store`.
        TransientStoreError: The store can't be used now.
    """
    store = installed_store() if spec.use_store else None
    try:
        yield store
    finally:
        if store is not None:
            store.close()


def installed_store() -> SqlStore:
    """Open the store of this installation; close it when you no longer use it.

    Messages in it are encrypted with Airflow's `[core] fernet_key`, where one is set.

    Raises:
        ConfigurationError: `[jmsjca] store_url` or `[core] fernet_key` can't be used.
        StoreSchemaError: The store's tables are missing, older or newer; the text names the remedy.
        TransientStoreError: The store can't be used now.
    """
    from airflow_provider_jmsjca.store.sql.store import open_store  # noqa: PLC0415 - see above

    return open_store(store_url(), cipher=_cipher())


@dataclass(slots=True, eq=False)
class _Share:
    """A shared store, and the number of its users."""

    opened: Future[SqlStore] = field(default_factory=Future)
    users: int = 0


_shares: dict[tuple[str, str, int], _Share] = {}
_sharing = threading.Lock()


def shared_store() -> SqlStore:
    """Return the store that all callers in this process share; call `release_shared_store` after use.

    The first caller opens the store, and the others wait until it is open. So a thousand triggers share one
    pool of database connections. The store regards all callers as one process, which lives until the last of
    them calls `release_shared_store`.

    Raises:
        ConfigurationError: `[jmsjca] store_url` or `[core] fernet_key` can't be used.
        StoreSchemaError: The store's tables are missing, older or newer; the text names the remedy.
        TransientStoreError: The store can't be used now.
    """
    url, cipher = store_url(), str(conf.get("core", "fernet_key", fallback=""))
    key = (url if isinstance(url, str) else url.render_as_string(hide_password=False), cipher, os.getpid())
    with _sharing:
        share = _shares.setdefault(key, _Share())
        share.users += 1
        first = share.users == 1
    if first:
        try:
            share.opened.set_result(installed_store())
        except BaseException as error:
            with _sharing:
                del _shares[key]
            share.opened.set_exception(error)
            raise
    return share.opened.result()


def release_shared_store(store: SqlStore) -> None:
    """Stop using the store of `shared_store`; the last user closes it."""
    with _sharing:
        key = next(
            each for each, share in _shares.items() if share.opened.done() and share.opened.result() is store
        )
        _shares[key].users -= 1
        if _shares[key].users:
            return
        del _shares[key]
    store.close()


def _cipher() -> Cipher | None:
    # Without an airflow.cfg, the processes of tasks get the placeholder {FERNET_KEY} instead of a key.
    if str(conf.get("core", "fernet_key", fallback="")) in {"", "{FERNET_KEY}"}:
        return None
    try:
        return get_fernet()
    except AirflowException as error:
        raise ConfigurationError(f"[core] fernet_key can't be used: {error}") from error
