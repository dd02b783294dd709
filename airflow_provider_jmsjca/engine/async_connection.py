"""A connection for the event loop that comes back by itself when it is lost."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import replace

from airflow_provider_jmsjca.core.backoff import RECONNECT, Backoff
from airflow_provider_jmsjca.engine.pool import ConnectionPool, Lease
from airflow_provider_jmsjca.engine.threads import in_thread, leave_to_thread
from airflow_provider_jmsjca.errors import TransientBrokerError
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import (
    Connection,
    ConnectionSettings,
    ConnectionState,
    OnLost,
)

log = logging.getLogger(__name__)

# One connection for each broker and process, whatever the number of streams.
_POOL = ConnectionPool()

# A connection that held this long was a good one: after its loss the waits begin at the first again.
_STEADY_SECONDS = 10.0


class AsyncConnection:
    """Lends a connection when one is needed, another when it was lost, with backoff.

    The connection itself is shared with everybody in the process who has the same settings.
    For one task of one event loop. Nothing in here blocks the loop.

    Args:
        settings: Which broker, as whom.
        pool: Whose connections.
        minimal_logging: The first failure is an error in the log, those that follow are for debugging.
            Source: J108.
        backoff: The waits between attempts.
    """

    def __init__(
        self,
        settings: ConnectionSettings,
        *,
        pool: ConnectionPool = _POOL,
        minimal_logging: bool = False,
        backoff: Backoff = RECONNECT,
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._backoff = backoff
        self._minimal_logging = minimal_logging
        self._lease: Lease | None = None
        self._opened_at = 0.0
        self._failures = 0

    async def get(self) -> Connection:
        """Return the live connection; open one if there is none, for as long as it takes.

        Raises:
            PermanentBrokerError: The broker refuses; trying again gives the same answer.
            ConfigurationError: The settings can't work.
        """
        while True:
            if self._lease is not None:
                if self._lease.connection.state is ConnectionState.UP:
                    return self._lease.connection
                self._note_loss()
            if self._failures:
                await asyncio.sleep(self._wait())
            try:
                return await self.attempt()
            except TransientBrokerError as error:
                self.failed(error)

    async def attempt(self) -> Connection:
        """Try once to get a connection, for who has waits and a log of its own; none is held before.

        Raises:
            JmsError: As the transport says.
        """
        lease = await in_thread(lambda: self._pool.borrow(self._settings, listening=True), undo=Lease.release)
        self._lease = lease
        self._opened_at = asyncio.get_running_loop().time()
        log.info("Connected to %s", lease.connection.broker)
        return lease.connection

    def look(self) -> Connection:
        """Open a connection that is nobody else's, for who only looks: the client id is for the consumer.

        May block; for any thread.

        Raises:
            JmsError: As the transport says.
        """
        return connect(replace(self._settings, client_id=None))

    def on_lost(self, callback: OnLost) -> None:
        """Call back once if the connection `get` returned last is lost before it is given back."""
        if self._lease is not None:
            self._lease.on_lost(callback)

    def failed(self, error: TransientBrokerError) -> None:
        """Say that the connection did not do: the next `get` tries again, after a wait."""
        self._failures += 1
        log.log(self._level(), "Attempt %d failed, another follows: %s", self._failures, error)
        self._give_back()

    def release(self) -> None:
        """Give the connection back. Whoever consumes on it closes the consumer first."""
        self._give_back()

    def relinquish(self) -> Callable[[], None]:
        """Hand over the right to the connection; return what gives it back, which may block.

        For a thread that closes what it consumes first. From here on this object holds none.
        """
        lease, self._lease = self._lease, None
        return _nothing if lease is None else lease.release

    def _note_loss(self) -> None:
        held = asyncio.get_running_loop().time() - self._opened_at
        self._failures = 0 if held >= _STEADY_SECONDS else self._failures + 1
        self._give_back()

    def _give_back(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            leave_to_thread(lease.release)

    def _level(self) -> int:
        if not self._minimal_logging:
            return logging.WARNING
        return logging.ERROR if self._failures == 1 else logging.DEBUG

    def _wait(self) -> float:
        return self._backoff.wait(self._failures, random.random()).total_seconds()  # noqa: S311  # jitter


def _nothing() -> None:
    """There is nothing to give back."""
