"""One connection for each broker and process, shared by all who need it."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Self

from airflow_provider_jmsjca.engine.connector import Connect
from airflow_provider_jmsjca.engine.losses import Losses
from airflow_provider_jmsjca.engine.usage import Usage
from airflow_provider_jmsjca.errors import ConfigurationError, JmsError
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import (
    Connection,
    ConnectionSettings,
    ConnectionState,
    OnLost,
)

DEFAULT_IDLE_TIMEOUT = timedelta(seconds=30)
DEFAULT_SIZE = 50
_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Shared:
    """One connection, or the attempt to open it."""

    usage: Usage
    opening: Future[Connection] = field(default_factory=Future)
    losses: Losses | None = None
    users: int = 0
    idle_since: float = 0.0


class Lease:
    """The right to use a shared connection until released. Use it as a context manager, or call `release`.

    Attributes:
        connection: The connection.
        usage: Where to note what it was used for, and how that went.
    """

    def __init__(
        self, connection: Connection, release: Callable[[], None], losses: Losses, usage: Usage
    ) -> None:
        self.connection = connection
        self.usage = usage
        self._release: Callable[[], None] | None = release
        self._losses = losses
        self._callbacks: list[OnLost] = []
        self._lock = threading.Lock()

    def on_lost(self, callback: OnLost) -> None:
        """Call back once if the connection is lost while it is leased (at once if it already is)."""
        with self._lock:
            if self._release is None:
                return
            self._callbacks.append(callback)
        self._losses.watch(callback)

    def release(self) -> None:
        """Give the connection back; releasing twice is harmless."""
        with self._lock:
            release, self._release = self._release, None
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            self._losses.forget(callback)
        if release is not None:
            release()

    def __enter__(self) -> Connection:
        return self.connection

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


class ConnectionPool:
    """Connections by their settings, counted by their users.

    A connection is valid until it is lost, the broker refuses something on it, or its last successful use is
    longer ago than the idle timeout (`Usage`). One that isn't valid is never lent again, and closed as soon
    as nobody has it: by a thread that exists only while something is idle. Time passes for those in use too;
    only those somebody listens on have no idle timeout. After a fork the child starts with an empty pool.

    Args:
        idle_timeout: How long a connection that wasn't used successfully stays valid. Source: J14, J43.
        size: How many connections are kept; beyond it those unused for longest are closed. More are open
            only while they are in use. Source: J80.
        connect: Opens one connection.
        clock: Returns seconds, monotonic.
    """

    def __init__(
        self,
        *,
        idle_timeout: timedelta = DEFAULT_IDLE_TIMEOUT,
        size: int = DEFAULT_SIZE,
        connect: Connect = connect,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._idle_seconds = idle_timeout.total_seconds()
        self._size = size
        self._connect = connect
        self._clock = clock
        self._reset()
        _pools.add(self)

    def borrow(self, settings: ConnectionSettings, *, listening: bool = False) -> Lease:
        """Return the shared connection for these settings, opened if there is none that is valid.

        Threads that ask at the same moment wait for the same attempt and share its outcome.

        Args:
            settings: Which broker, as whom.
            listening: It will be listened on: until its release it doesn't become invalid by quiet hours.

        Raises:
            TransientBrokerError: As `Transport.connect`; so are `AuthenticationError` and
                `ConfigurationError`. `ConfigurationError` also after `close`.
        """
        key = settings_key(settings)
        with self._lock:
            if self._closed:
                raise ConfigurationError("the connection pool is closed")
            shared = self._shared.get(key)
            stale = shared if shared is not None and not self._usable(shared) else None
            opens = shared is None or stale is not None
            surplus: list[_Shared] = []
            if shared is None or stale is not None:
                shared = self._shared[key] = _Shared(Usage(self._clock))
            shared.users += 1
            if opens:
                surplus = self._take_surplus()
            self._wake.notify_all()
        if stale is not None and stale.users == 0:
            surplus.append(stale)
        for unwanted in surplus:
            _close(unwanted)
        if opens:
            self._open(key, shared, settings)
        try:
            connection = shared.opening.result()
        except BaseException:
            with self._lock:
                shared.users -= 1
            raise
        if shared.losses is None:
            raise AssertionError("a connection that is open has its watchers")
        if listening:
            shared.usage.listen()
        give_back = partial(self._give_back, key, shared, listening=listening)
        return Lease(connection, give_back, shared.losses, shared.usage)

    def __len__(self) -> int:
        """How many connections are open or being opened."""
        with self._lock:
            return len(self._shared)

    def close(self) -> None:
        """Close every connection, also those in use; nothing can be borrowed afterwards."""
        with self._lock:
            self._closed = True
            everything = list(self._shared.values())
            self._shared.clear()
            self._wake.notify_all()
        for shared in everything:
            _close(shared)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._shared: dict[Hashable, _Shared] = {}
        self._reaper: threading.Thread | None = None
        self._closed = False

    def _take_surplus(self) -> list[_Shared]:
        """Take out those unused for longest while there are too many."""
        idle = [(shared.idle_since, key) for key, shared in self._shared.items() if shared.users == 0]
        idle.sort(key=lambda entry: entry[0])
        return [self._shared.pop(key) for _, key in idle[: max(0, len(self._shared) - self._size)]]

    def _open(self, key: Hashable, shared: _Shared, settings: ConnectionSettings) -> None:
        try:
            connection = self._connect(settings)
        except BaseException as failure:  # noqa: BLE001  # raised by every thread that waits for this attempt
            with self._lock:
                if self._shared.get(key) is shared:
                    del self._shared[key]
            shared.opening.set_exception(failure)
        else:
            shared.usage.succeeded()
            with self._lock:
                wanted = not self._closed
                shared.losses = Losses(connection)
                shared.opening.set_result(connection)
            if not wanted:
                _close(shared)

    def _usable(self, shared: _Shared) -> bool:
        if not shared.opening.done():
            return True
        if shared.opening.exception() is not None:
            return False
        valid = shared.usage.left(self._idle_seconds) > 0
        return valid and shared.opening.result().state is ConnectionState.UP

    def _give_back(self, key: Hashable, shared: _Shared, *, listening: bool) -> None:
        if listening:
            shared.usage.unlisten()
        with self._lock:
            shared.users -= 1
            shared.idle_since = self._clock()
            if shared.users:
                return
            kept = self._shared.get(key) is shared and self._usable(shared)
            if kept:
                if self._reaper is None:
                    self._reaper = threading.Thread(target=self._reap, name="jms-pool", daemon=True)
                    self._reaper.start()
            elif self._shared.get(key) is shared:
                del self._shared[key]
        if not kept:
            _close(shared)

    def _reap(self) -> None:
        while True:
            with self._lock:
                idle = {key: shared for key, shared in self._shared.items() if shared.users == 0}
                expired = {key: shared for key, shared in idle.items() if not self._usable(shared)}
                for key in expired:
                    del self._shared[key]
                if not expired:
                    if not idle:
                        self._reaper = None
                        return
                    soonest = min(shared.usage.left(self._idle_seconds) for shared in idle.values())
                    self._wake.wait(max(soonest, 0.001))
            for shared in expired.values():
                _close(shared)


def settings_key(settings: ConnectionSettings) -> Hashable:
    """Return what tells connections apart: all their settings."""
    values = {item.name: getattr(settings, item.name) for item in fields(settings)}
    values["options"] = frozenset(settings.options.items())
    return tuple(values.values())


def _close(shared: _Shared) -> None:
    if not shared.opening.done() or shared.opening.exception() is not None:
        return
    connection = shared.opening.result()
    try:
        connection.close()
    except JmsError as failure:
        _log.warning("Closing the connection to %s failed: %s", connection.broker, failure)


_pools: weakref.WeakSet[ConnectionPool] = weakref.WeakSet()


def _forget_after_fork() -> None:
    # The sockets are the parent's; closing them here would end its conversation with the broker.
    for pool in list(_pools):
        pool._reset()  # noqa: SLF001  # the same module


os.register_at_fork(after_in_child=_forget_after_fork)
