"""The registry of activations in this installation's store."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from airflow_provider_jmsjca.engine.activations.registry import Registrar, Supervision
from airflow_provider_jmsjca.hooks.store import release_shared_store, shared_store, store_in_use, store_url

if TYPE_CHECKING:
    from airflow_provider_jmsjca.store.base import Store
    from airflow_provider_jmsjca.transports.base import ConnectionSettings

_registrars: dict[tuple[str, int], Registrar] = {}
_making = threading.Lock()


def installed_registrar() -> Registrar | None:
    """Return the object that registers this process's activations in the installation's store.

    All tasks and triggers of a process share it. The store is opened in a thread of the registrar.

    Returns:
        The registrar; `None` if no store is configured and the default file doesn't exist.
    """
    if not store_in_use():
        return None
    key = str(store_url()), os.getpid()
    with _making:
        if key not in _registrars:
            _registrars[key] = Registrar(_shared)
        return _registrars[key]


def task_supervision(task_instance: object, connection: ConnectionSettings) -> Supervision | None:
    """Return the object that registers the listener of a task in the store; `None` without a store.

    Args:
        task_instance: The task instance that runs the listener.
        connection: Connection settings of the listener.
    """
    registrar = installed_registrar()
    return None if registrar is None else Supervision(registrar, task_name(task_instance), connection)


def task_name(task_instance: object) -> str:
    """Return the DAG, task, map index and DAG run of a task instance as text."""
    found = [str(getattr(task_instance, name, "")) for name in ("dag_id", "task_id")]
    index = getattr(task_instance, "map_index", -1)
    name = ".".join(found) + (f"[{index}]" if isinstance(index, int) and index >= 0 else "")
    run = getattr(task_instance, "run_id", "")
    return f"{name}, run {run}" if run else name


@contextlib.contextmanager
def _shared() -> Iterator[Store]:
    store = shared_store()
    try:
        yield store
    finally:
        release_shared_store(store)
