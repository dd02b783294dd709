"""Sends due messages of limbo from the triggerer, in one task for all its triggers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import weakref
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_provider_jmsjca.core.backoff import Backoff
from airflow_provider_jmsjca.engine.connecting.threads import ThreadPool, in_thread
from airflow_provider_jmsjca.engine.limbo import EVERY, StoreUpkeep
from airflow_provider_jmsjca.engine.session.connection import JmsConnection
from airflow_provider_jmsjca.errors import JmsError, TransientBrokerError
from airflow_provider_jmsjca.hooks.destinations import find_destination
from airflow_provider_jmsjca.hooks.jms import JmsHook
from airflow_provider_jmsjca.hooks.store import release_shared_store, shared_store, store_in_use
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.transports.members import split_limbo_name

if TYPE_CHECKING:
    from airflow_provider_jmsjca.store.sql.store import SqlStore

_log = safe_logger(__name__)
_THREADS = ThreadPool(1)
_LOOK_UP_SECONDS = 30.0
# Pauses after a fault of the store: its database is not reachable or not upgraded.
_RETRY_BACKOFF = Backoff(steps=tuple(timedelta(seconds=step) for step in (1, 2, 5, 10)), jitter=0)


class _Task:
    """The task of one event loop, and the number of triggers that use it."""

    def __init__(self) -> None:
        self.users = 1
        self.task = asyncio.get_running_loop().create_task(_release())


_tasks: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Task] = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def releasing() -> Iterator[None]:
    """Send due messages of limbo inside the context, if this installation uses a store.

    Use it in an event loop. Guarantee: that of `LimboSender`. All triggers of an event loop share one asyncio
    task. Each message is leased in the store before it is sent, so other processes don't send it too.
    """
    loop = asyncio.get_running_loop()
    found = _tasks.get(loop)
    if found is None:
        found = _tasks[loop] = _Task()
    else:
        found.users += 1
    try:
        yield
    finally:
        found.users -= 1
        if not found.users:
            if _tasks.get(loop) is found:
                del _tasks[loop]
            if not loop.is_closed():
                found.task.cancel()


async def _release() -> None:
    loop = asyncio.get_running_loop()
    store: SqlStore | None = None
    upkeep: StoreUpkeep | None = None
    faults, reported = 0, ""
    try:
        while True:
            wait = EVERY
            try:
                if upkeep is None and store_in_use():
                    store = await in_thread(shared_store, undo=release_shared_store)
                    upkeep = StoreUpkeep(store, functools.partial(_connect, loop))
                if upkeep is not None:
                    await in_thread(upkeep.round, start=_THREADS.submit)
                faults, reported = 0, ""
            except JmsError as error:
                faults += 1
                wait = _RETRY_BACKOFF.wait(faults, 0)
                if str(error) != reported:
                    reported = str(error)
                    _log.error("Nothing is sent from limbo until this is fixed: %s", error)
            except Exception:  # noqa: BLE001 - the outermost edge of this task: nobody else would see it
                wait = _RETRY_BACKOFF.wait(faults := faults + 1, 0)
                _log.exception("Sending the due messages in limbo failed; retrying")
            await asyncio.sleep(wait.total_seconds())
    finally:
        if store is not None:
            # In the thread that sends, so that the store is closed after the current round. Closing gives up
            # the leases of messages, and another process would then send them too.
            _THREADS.submit_logged(functools.partial(release_shared_store, store))


def _connect(loop: asyncio.AbstractEventLoop, name: str) -> AbstractContextManager[JmsConnection]:
    """Connect for messages of limbo, in the calling thread.

    The call waits while the triggerer's event loop reads the Airflow connection.

    Args:
        loop: The triggerer's event loop.
        name: Name of the connection in limbo.

    Raises:
        TransientBrokerError: The event loop has ended, or Airflow didn't answer in time.
    """
    conn_id, _ = split_limbo_name(name)
    question = JmsHook(conn_id).aoptions()
    try:
        options = asyncio.run_coroutine_threadsafe(question, loop).result(_LOOK_UP_SECONDS)
    except (TimeoutError, RuntimeError, CancelledError) as error:
        question.close()  # the loop has ended
        raise TransientBrokerError(f"connection {conn_id!r} can't be looked up now") from error
    return JmsHook.connect_for_limbo(name, options, functools.partial(find_destination, variables=False))
