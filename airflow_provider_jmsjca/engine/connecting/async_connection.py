"""A connection for an event loop. When the connection is lost, it is opened again."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import random
import time
import weakref
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator
from dataclasses import replace
from typing import TypeAlias, TypeVar

from airflow_provider_jmsjca.core.backoff import RECONNECT, Backoff
from airflow_provider_jmsjca.engine.connecting.pool import ConnectionPool, Lease, settings_key
from airflow_provider_jmsjca.engine.connecting.threads import ThreadPool, in_thread
from airflow_provider_jmsjca.errors import JmsError, PermanentBrokerError, TransientBrokerError
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import (
    Connection,
    ConnectionSettings,
    ConnectionState,
    OnLost,
)

log = safe_logger(__name__)
T = TypeVar("T")

FindSettings: TypeAlias = Callable[[], Awaitable[ConnectionSettings]]
OnStale: TypeAlias = Callable[[], None]

# All streams of a process share one connection to each broker.
_POOL = ConnectionPool()

# If a connection lasted this long, the backoff after its loss starts again at the first wait.
_STEADY_SECONDS = 10.0

# Threads for blocking calls, shared by all users of one broker.
_THREADS = 2

# How often all users check for changed settings, together within one second.
_CHECKED_EVERY_SECONDS = 60.0
_SPREAD_SECONDS = 0.8

# Typical first wait of the backoff. On its first attempt, a user gets the last failure of the other users, if
# that is younger than half of this time, instead of a new attempt.
_FIRST_WAIT_SECONDS = 1.0


class AsyncConnection:
    """Lends its user a shared connection, and a new one after a loss, with backoff.

    All users in the process with the same settings share the connection and the attempts to open it. The
    error of a failed attempt is raised to every user that requests the connection shortly after it. A
    transient error is logged once for all of them. Use an object in one task of one event loop; no method
    except `open_probe_connection` blocks the loop.

    After a refusal, the user retries over a connection of its own, because some brokers close the connection
    with each refusal. With a client id, which a broker may accept only once, the connection stays shared.

    Args:
        settings: Broker and credentials, or a function that returns them, called at every attempt and once a
            minute. When they have changed, the user gives up its connection and gets a new one.
        pool: The pool of connections.
        subject: Returns the user's name for the log: an asset or a task, with its destination and
            connection. `None`: the name of the connection.
        minimal_logging: The first failure is logged as an error, later ones at debug level.
        backoff: The waits between attempts.
        unshared: Start with a connection that is not shared, because the broker refused a request before.

    Attributes:
        unshared: Whether the next connection is not shared with other users, see `noting_refusals`. Ignored
            if the settings have a client id.
    """

    def __init__(
        self,
        settings: ConnectionSettings | FindSettings,
        *,
        pool: ConnectionPool = _POOL,
        subject: Callable[[], str] | None = None,
        minimal_logging: bool = False,
        backoff: Backoff = RECONNECT,
        unshared: bool = False,
    ) -> None:
        self.subject = subject or self._name
        self.unshared = unshared
        self._find: FindSettings = _always(settings) if isinstance(settings, ConnectionSettings) else settings
        self._settings = settings if isinstance(settings, ConnectionSettings) else None
        self._is_fixed = isinstance(settings, ConnectionSettings)
        self._pool = pool
        self._unshared_pool: ConnectionPool | None = None
        self._backoff = backoff
        self.minimal_logging = minimal_logging
        self._lease: Lease | None = None
        self._shared: _Shared | None = None
        self._opened_at = 0.0
        self._disconnected_at: float | None = None
        self._failures = 0
        self._stale = False
        self._on_stale: list[OnStale] = []
        self._check: asyncio.TimerHandle | asyncio.Task[None] | None = None

    async def get(self) -> Connection:
        """Return the open connection; without one, try to open it until that succeeds.

        Raises:
            PermanentBrokerError: The broker refuses; a retry would fail too.
            ConfigurationError: The settings can't work.
        """
        while True:
            if self._lease is not None:
                if self._lease.connection.state is ConnectionState.UP and not self._stale:
                    return self._lease.connection
                self._handle_loss()
            if self._failures:
                await asyncio.sleep(self._wait())
            try:
                return await self.attempt()
            except TransientBrokerError:  # already logged by the attempt
                self._failures += 1

    async def attempt(self) -> Connection:
        """Try once to get a connection, for callers with their own backoff.

        The caller must not hold a connection. A transient failure is logged, any other is only raised.

        Raises:
            JmsError: The attempt failed; see `Transport.connect`.
        """
        settings = self._settings = await self._find()
        pool = self._pool
        if self.unshared and settings.client_id is None:
            pool = self._unshared_pool = self._unshared_pool or self._pool.empty_copy()
        before, shared = self._shared, _shared_state(pool, settings)
        if before is not shared:
            if before is not None:
                before.users.discard(self)
            shared.users.add(self)
            self._shared = shared
        now = time.monotonic()
        waited = _FIRST_WAIT_SECONDS if self._disconnected_at is None else now - self._disconnected_at
        try:
            lease = await shared.lease(waited / 2, self)
        except BaseException:
            self._disconnected_at = time.monotonic()
            raise
        self._lease = lease
        self._stale = False
        self._on_stale = []
        self._opened_at = asyncio.get_running_loop().time()
        self._check_later()
        return lease.connection

    @contextlib.contextmanager
    def noting_refusals(self) -> Iterator[None]:
        """Use a connection of its own next time if the broker refuses a request in the `with` block.

        Some brokers close the connection with a refusal, which would interrupt its other users. The block
        sets `unshared`: `True` after a refusal, `False` without an error. Other errors don't change it.
        """
        try:
            yield
        except PermanentBrokerError:
            self.unshared = True
            raise
        self.unshared = False

    async def in_thread(self, function: Callable[[], T], *, undo: Callable[[T], object] | None = None) -> T:
        """Run a function in the thread pool shared by all users of the broker; return its result.

        Requires a connection. Arguments, errors and guarantee are those of `in_thread` in
        `engine.connecting.threads`.
        """
        return await in_thread(function, undo=undo, start=self._thread_pool.submit)

    def open_probe_connection(self) -> Connection:
        """Open a separate connection without client id, to query the backlog.

        The call blocks until the connection is open, so call it in a thread and not in the event loop.

        Raises:
            CapabilityError: The broker doesn't report backlogs.
            JmsError: The connection can't be opened; see `Transport.connect`.
        """
        if (lease := self._lease) is not None:
            connection = lease.connection
            connection.capabilities.require(
                connection.broker, "backlog", purpose="noticing messages that stay"
            )
        if self._settings is None:
            raise TransientBrokerError("the broker's address is not known yet")
        return connect(replace(self._settings, client_id=None))

    def on_lost(self, callback: OnLost) -> None:
        """Call `callback` once if the connection that `get` last returned is lost before its release."""
        if self._lease is not None:
            self._lease.on_lost(callback)

    def on_stale(self, callback: OnStale) -> None:
        """Call `callback` once, in the event loop, if the settings of the held connection change.

        The connection is still up, and other users may hold it. The callback should release it and get a
        connection with the new settings.
        """
        if self._lease is not None:
            self._on_stale.append(callback)

    def failed(self, error: TransientBrokerError) -> None:
        """Release the connection because of a failure on it; the next `get` waits before it retries."""
        self._failures += 1
        lost = self._lease is not None and self._lease.connection.state is not ConnectionState.UP
        # A loss is only logged at debug level here, because it was logged once for all users.
        level = logging.DEBUG if lost else self._level()
        log.log(level, "Retrying after a wait%s: %s", _user_list([self.subject()]), error)
        self._release_lease()

    def release(self) -> None:
        """Release the connection. Close consumers on it first."""
        self._release_lease()

    def detach(self) -> Callable[[], None]:
        """Give up the connection, and return a function that releases it.

        The function may block. It is for a thread that closes its consumers before the release. After this
        call, the object holds no connection.
        """
        lease, self._lease = self._lease, None
        self._cancel_check()
        if lease is None:
            return _do_nothing
        self._disconnected_at = time.monotonic()
        return lease.release

    def _handle_loss(self) -> None:
        held = asyncio.get_running_loop().time() - self._opened_at
        self._failures = 0 if held >= _STEADY_SECONDS else self._failures + 1
        self._release_lease()

    def _release_lease(self) -> None:
        lease, self._lease = self._lease, None
        self._cancel_check()
        if lease is not None:
            self._disconnected_at = time.monotonic()
            self._thread_pool.submit_logged(lease.release)

    def _check_later(self) -> None:
        """Check for changed settings at the next full minute, when all users can share one lookup."""
        self._cancel_check()
        if self._is_fixed:
            return
        loop = asyncio.get_running_loop()
        wait = _CHECKED_EVERY_SECONDS - loop.time() % _CHECKED_EVERY_SECONDS
        # A random part spreads the checks of a thousand users, which would block the loop together.
        self._check = loop.call_later(wait + random.random() * _SPREAD_SECONDS, self._begin_check)  # noqa: S311

    def _begin_check(self) -> None:
        self._check = asyncio.get_running_loop().create_task(self._check_settings())

    def _cancel_check(self) -> None:
        check, self._check = self._check, None
        if check is not None:
            check.cancel()

    async def _check_settings(self) -> None:
        found: ConnectionSettings | None
        try:
            found = await self._find()
        except JmsError as error:
            log.debug("Can't check for changed settings: %s", error)
            found = self._settings
        self._check = None  # this task ends by itself
        if self._lease is None:
            return
        if found is None or self._settings is None or settings_key(found) == settings_key(self._settings):
            self._check_later()
            return
        if self._shared is not None:
            self._shared.log_once(
                f"The settings for {self._settings.url} have changed; moving to {found.url}"
            )
        self._stale = True
        callbacks, self._on_stale = self._on_stale, []
        for callback in callbacks:
            callback()

    def _name(self) -> str:
        name = self._settings.name if self._settings is not None else ""
        return f"connection {name!r}" if name else ""

    @property
    def _thread_pool(self) -> ThreadPool:
        if self._shared is None:
            raise TransientBrokerError("the broker's address is not known yet")
        return self._shared.thread_pool

    def _level(self) -> int:
        if not self.minimal_logging:
            return logging.WARNING
        return logging.ERROR if self._failures == 1 else logging.DEBUG

    def _wait(self) -> float:
        return self._backoff.wait(self._failures, random.random()).total_seconds()  # noqa: S311  # jitter


class _Shared:
    """State shared by the users of one broker with the same settings in an event loop.

    Attributes:
        thread_pool: Threads for blocking calls.
        users: Live users of the connection.
    """

    def __init__(self, pool: ConnectionPool, settings: ConnectionSettings) -> None:
        self._pool = pool
        self._settings = settings
        self._opening: asyncio.Task[JmsError | None] | None = None
        self._spare: Lease | None = None
        self._failure: JmsError | None = None
        self._failed_at = 0.0
        self._failures = 0
        self._logged: set[str] = set()
        self.thread_pool = ThreadPool(_THREADS)
        self.users: weakref.WeakSet[AsyncConnection] = weakref.WeakSet()

    async def lease(self, max_failure_age: float, user: AsyncConnection) -> Lease:
        """Return a lease of the connection, and open it if necessary; concurrent callers share an attempt.

        Args:
            max_failure_age: Seconds. If the last failure is younger, it is raised again without a new
                attempt.
            user: The caller. Airflow writes log lines of an attempt into the log of the calling task.
        """
        while (lease := self._available_lease()) is None:
            if self._opening is None:
                if self._failure is not None and time.monotonic() - self._failed_at < max_failure_age:
                    raise copy.copy(self._failure) from self._failure
                self._opening = asyncio.get_running_loop().create_task(self._open(user))
            failure = await asyncio.shield(self._opening)
            if failure is not None:
                raise copy.copy(failure) from failure  # a copy, because several tasks raise it
        return lease

    def log_once(self, text: str) -> None:
        """Log a line once for all users of the broker."""
        if text not in self._logged:
            self._logged.add(text)
            log.info(text)

    def _available_lease(self) -> Lease | None:
        spare, self._spare = self._spare, None
        if spare is not None and spare.connection.state is ConnectionState.UP:
            return spare
        if spare is not None:
            self.thread_pool.submit_logged(spare.release)
        return self._pool.borrow_open(self._settings)

    async def _open(self, user: AsyncConnection) -> JmsError | None:
        try:
            lease = await in_thread(
                lambda: self._pool.borrow(self._settings, listening=True), undo=Lease.release
            )
        except JmsError as error:
            self._failure, self._failed_at = error, time.monotonic()
            self._failures += 1
            if isinstance(error, TransientBrokerError):
                first = logging.ERROR if self._failures == 1 else logging.DEBUG
                level = first if user.minimal_logging else logging.WARNING
                log.log(
                    level,
                    "Attempt %d to connect failed%s, another follows: %s",
                    self._failures,
                    _user_list((each.subject() for each in self.users), user.subject()),
                    error,
                )
            return error
        else:
            self._failure, self._failures = None, 0
            self._spare = lease
            subjects = _user_list((each.subject() for each in self.users), user.subject())
            log.info("Connected to %s%s", lease.connection.broker, subjects)
            # Release the lease if no user takes it, because all waiting users may have been cancelled.
            asyncio.get_running_loop().call_later(_KEPT_SPARE_SECONDS, self._drop_spare, lease)
            return None
        finally:
            self._opening = None

    def _drop_spare(self, lease: Lease) -> None:
        if self._spare is lease:
            self._spare = None
            self.thread_pool.submit_logged(lease.release)


_KEPT_SPARE_SECONDS = 0.1

# Maximum number of users of a connection that a log line names.
_NAMED = 3

_shared_by_loop: weakref.WeakKeyDictionary[
    asyncio.AbstractEventLoop, weakref.WeakValueDictionary[Hashable, _Shared]
] = weakref.WeakKeyDictionary()


def _shared_state(pool: ConnectionPool, settings: ConnectionSettings) -> _Shared:
    known = _shared_by_loop.setdefault(asyncio.get_running_loop(), weakref.WeakValueDictionary())
    key = (pool, settings_key(settings))
    found = known.get(key)
    if found is None:
        found = known[key] = _Shared(pool, settings)
    return found


def _always(settings: ConnectionSettings) -> FindSettings:
    async def find() -> ConnectionSettings:
        return settings

    return find


def _do_nothing() -> None:
    """Stand in for `Lease.release` if no connection is held."""


def _user_list(subjects: Iterable[str], first: str = "") -> str:
    """Return the end of a log line: " for" and the names of up to three users, `first` before the others."""
    known = sorted({*subjects} - {""}, key=lambda subject: (subject != first, subject))
    more = f" and {len(known) - _NAMED} more" if len(known) > _NAMED else ""
    return f" for {', '.join(known[:_NAMED])}{more}" if known else ""
