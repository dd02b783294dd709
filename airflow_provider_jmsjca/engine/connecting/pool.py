"""One connection for each broker and process, shared by its users."""

from __future__ import annotations

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

from airflow_provider_jmsjca.errors import (
    ConfigurationError,
    JmsError,
    PermanentBrokerError,
    TransientBrokerError,
)
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import (
    Connection,
    ConnectionSettings,
    ConnectionState,
    OnLost,
)

_log = safe_logger(__name__)


class LossCallbacks:
    """Calls the registered callbacks when a connection is lost.

    A connection keeps its own callbacks for its lifetime. A connection shared for weeks would collect the
    callbacks of all its former users, and every object they refer to. Here a user can remove its callback.
    """

    def __init__(self, connection: Connection) -> None:
        self._lock = threading.Lock()
        self._watchers: list[OnLost] = []
        self._reason: JmsError | None = None
        connection.on_lost(self._lost)

    def add(self, callback: OnLost) -> None:
        """Call `callback` once when the connection is lost; at once if it is lost already."""
        with self._lock:
            reason = self._reason
            if reason is None:
                self._watchers.append(callback)
        if reason is not None:
            callback(reason)

    def remove(self, callback: OnLost) -> None:
        """Remove a callback; harmless if it was called or is unknown."""
        with self._lock:
            if callback in self._watchers:
                self._watchers.remove(callback)

    def __len__(self) -> int:
        """Return the number of callbacks."""
        with self._lock:
            return len(self._watchers)

    def _lost(self, reason: JmsError) -> None:
        with self._lock:
            self._reason = reason
            watchers, self._watchers = self._watchers, []
        for callback in watchers:
            try:
                callback(reason)
            except Exception:  # noqa: BLE001 - the edge: the other callbacks must run too
                _log.exception("A callback for the lost connection failed")


class Usage:
    """Use of a connection, by which a pool decides how long the connection stays valid.

    Opening, sending, receiving and committing without a broker error are successful uses. A refusal by the
    broker makes the connection invalid. As a context manager, the object records the broker errors that its
    block raises.

    Args:
        clock: Returns seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._succeeded_at = clock()
        self._failed = False
        self._listeners = 0
        self._lock = threading.Lock()

    def record_success(self) -> None:
        """Record a successful use, which restarts the idle timeout."""
        self._succeeded_at = self._clock()

    def record_failure(self) -> None:
        """Record a refusal or a broken connection: the connection is not lent again."""
        self._failed = True

    def add_listener(self) -> None:
        """Add a listener; no idle timeout applies until `remove_listener`, because heart-beats suffice."""
        with self._lock:
            self._listeners += 1

    def remove_listener(self) -> None:
        """Remove a listener; when the last one is removed, the idle timeout starts again."""
        with self._lock:
            self._listeners -= 1
        self.record_success()

    def seconds_left(self, idle_seconds: float) -> float:
        """Return the seconds for which the connection stays valid without further use.

        Args:
            idle_seconds: The idle timeout.

        Returns:
            Remaining seconds; 0 or less: the connection is invalid.
        """
        if self._failed:
            return 0.0
        if self._listeners:
            return idle_seconds
        return self._succeeded_at + idle_seconds - self._clock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(exc_value, TransientBrokerError | PermanentBrokerError):
            self.record_failure()


DEFAULT_IDLE_TIMEOUT = timedelta(seconds=30)
DEFAULT_SIZE = 50


@dataclass(slots=True, eq=False)
class _Shared:
    """One shared connection, or the attempt to open it."""

    usage: Usage
    opening: Future[Connection] = field(default_factory=Future)
    loss_callbacks: LossCallbacks | None = None
    users: int = 0
    idle_since: float = 0.0


class Lease:
    """The right to use a shared connection until released. Use it as a context manager, or call `release`.

    Attributes:
        connection: The connection.
        usage: Records successful and failed uses.
    """

    def __init__(
        self, connection: Connection, release: Callable[[], None], loss_callbacks: LossCallbacks, usage: Usage
    ) -> None:
        self.connection = connection
        self.usage = usage
        self._release: Callable[[], None] | None = release
        self._loss_callbacks = loss_callbacks
        self._callbacks: list[OnLost] = []
        self._lock = threading.Lock()

    def on_lost(self, callback: OnLost) -> None:
        """Call `callback` once if the connection is lost during the lease; at once if it is lost already."""
        with self._lock:
            if self._release is None:
                return
            self._callbacks.append(callback)
        self._loss_callbacks.add(callback)

    def release(self) -> None:
        """Release the connection; releasing twice is harmless."""
        with self._lock:
            release, self._release = self._release, None
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            self._loss_callbacks.remove(callback)
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
    """Shares connections between users with the same settings.

    A connection becomes invalid in three cases: it is lost; the broker refuses something on it; or its last
    successful use is longer ago than the idle timeout (`Usage`). The timeout also runs while a user holds the
    connection, unless it has listeners. An invalid connection gets no new user, and is closed when its
    last user releases it. A thread that exists only while connections are idle closes expired ones. After a
    fork the child starts with an empty pool.

    Args:
        idle_timeout: How long a connection stays valid without a successful use.
        size: Number of connections to keep. If more are open, idle ones are closed, the longest idle first.
            Connections in use are never closed for this reason, so their number may exceed `size`.
        connect: Opens one connection.
        clock: Returns seconds, monotonic.
    """

    def __init__(
        self,
        *,
        idle_timeout: timedelta = DEFAULT_IDLE_TIMEOUT,
        size: int = DEFAULT_SIZE,
        connect: Callable[[ConnectionSettings], Connection] = connect,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._idle_seconds = idle_timeout.total_seconds()
        self._size = size
        self._connect = connect
        self._clock = clock
        self._reset()
        _pools.add(self)

    def borrow(self, settings: ConnectionSettings, *, listening: bool = False) -> Lease:
        """Return a lease of the shared connection for these settings; open it if there is no valid one.

        Concurrent callers wait for the same attempt and share its outcome.

        Args:
            settings: Broker and credentials.
            listening: The user is a listener: the idle timeout does not apply until the lease is released.

        Raises:
            JmsError: The attempt failed; see `Transport.connect`.
            ConfigurationError: The settings can't work, or the pool is closed.
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
                surplus = self._pop_surplus()
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
        if shared.loss_callbacks is None:
            raise AssertionError("a connection that is open has its watchers")
        if listening:
            shared.usage.add_listener()
        give_back = partial(self._release, key, shared, listening=listening)
        return Lease(connection, give_back, shared.loss_callbacks, shared.usage)

    def borrow_open(self, settings: ConnectionSettings) -> Lease | None:
        """Return a lease of an open connection for a listener; `None` if no valid connection is open.

        This call doesn't block, but the release of the lease may block.
        """
        key = settings_key(settings)
        with self._lock:
            shared = self._shared.get(key)
            if shared is None or not shared.opening.done() or not self._usable(shared):
                return None
            if shared.loss_callbacks is None:
                raise AssertionError("a connection that is open has its watchers")
            shared.users += 1
        shared.usage.add_listener()
        give_back = partial(self._release, key, shared, listening=True)
        return Lease(shared.opening.result(), give_back, shared.loss_callbacks, shared.usage)

    def empty_copy(self) -> ConnectionPool:
        """Return an empty pool that connects in the same way and keeps no idle connections."""
        return ConnectionPool(idle_timeout=timedelta(0), connect=self._connect, clock=self._clock)

    def __len__(self) -> int:
        """Return the number of connections that are open or being opened."""
        with self._lock:
            return len(self._shared)

    def close(self) -> None:
        """Close all connections, including those in use; later calls of `borrow` fail."""
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

    def _pop_surplus(self) -> list[_Shared]:
        """Remove and return the longest idle connections above the pool's size."""
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
            shared.usage.record_success()
            with self._lock:
                wanted = not self._closed
                shared.loss_callbacks = LossCallbacks(connection)
                shared.opening.set_result(connection)
            if not wanted:
                _close(shared)

    def _usable(self, shared: _Shared) -> bool:
        if not shared.opening.done():
            return True
        if shared.opening.exception() is not None:
            return False
        valid = shared.usage.seconds_left(self._idle_seconds) > 0
        return valid and shared.opening.result().state is ConnectionState.UP

    def _release(self, key: Hashable, shared: _Shared, *, listening: bool) -> None:
        if listening:
            shared.usage.remove_listener()
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
                    soonest = min(shared.usage.seconds_left(self._idle_seconds) for shared in idle.values())
                    self._wake.wait(max(soonest, 0.001))
            for shared in expired.values():
                _close(shared)


def settings_key(settings: ConnectionSettings) -> Hashable:
    """Return the key of a connection: all settings except the name."""
    values = {item.name: getattr(settings, item.name) for item in fields(settings) if item.compare}
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
    # The parent owns the sockets; closing them here would disrupt its sessions with the broker.
    for pool in list(_pools):
        pool._reset()  # noqa: SLF001  # the same module


os.register_at_fork(after_in_child=_forget_after_fork)
