"""A connection for the event loop that comes back by itself when it is lost."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from airflow_provider_jmsjca.engine.threads import in_thread
from airflow_provider_jmsjca.errors import TransientBrokerError
from airflow_provider_jmsjca.transports import connect as connect_transport
from airflow_provider_jmsjca.transports.base import Connection, ConnectionSettings, ConnectionState

log = logging.getLogger(__name__)
Connect = Callable[[ConnectionSettings], Connection]

# A connection that held this long was a good one: after its loss the delays begin at the first again.
_STEADY_SECONDS = 10.0
# How long closing is waited for. A cancelled trigger has to be gone soon; the thread closes on.
_CLOSE_SECONDS = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """How long to wait before the next attempt.

    Attributes:
        jitter: Share of the delay that is left to chance, 0 to 1, so that many clients don't come at once.
    """

    initial: timedelta = timedelta(seconds=0.5)
    multiplier: float = 2.0
    maximum: timedelta = timedelta(seconds=60)
    jitter: float = 0.2

    def delay(self, attempt: int, chance: float) -> timedelta:
        """Return the delay before the next attempt.

        Args:
            attempt: How many attempts have failed in a row, at least 1.
            chance: 0 to 1; 0.5 gives the delay without jitter.
        """
        exponent = min(attempt - 1, 64)
        plain = min(self.initial * self.multiplier**exponent, self.maximum) if exponent < 64 else self.maximum
        return plain * (1 + self.jitter * (2 * chance - 1))


class AsyncConnection:
    """Opens a connection when one is needed, again when it was lost, with backoff.

    For one task of one event loop. Nothing in here blocks the loop.
    """

    def __init__(
        self,
        settings: ConnectionSettings,
        *,
        connect: Connect = connect_transport,
        backoff: Backoff | None = None,
    ) -> None:
        self._settings = settings
        self._connect = connect
        self._backoff = backoff or Backoff()
        self._connection: Connection | None = None
        self._opened_at = 0.0
        self._failures = 0

    async def get(self) -> Connection:
        """Return the live connection; open one if there is none, for as long as it takes.

        Raises:
            PermanentBrokerError: The broker refuses; trying again gives the same answer.
            ConfigurationError: The settings can't work.
        """
        while True:
            if self._connection is not None:
                if self._connection.state is ConnectionState.UP:
                    return self._connection
                self._drop(steady_resets=True)
            if self._failures:
                await self._wait()
            try:
                connection = await in_thread(lambda: self._connect(self._settings), undo=_close)
            except TransientBrokerError as error:
                self.failed(error)
                continue
            self._connection = connection
            self._opened_at = asyncio.get_running_loop().time()
            log.info("connected to %s", connection.broker)

    def failed(self, error: TransientBrokerError) -> None:
        """Say that the connection did not do: the next `get` opens another one, after a delay."""
        self._failures += 1
        log.warning("%s; attempt %d follows", error, self._failures + 1)
        self._drop(steady_resets=False)

    async def aclose(self) -> None:
        """Close. Unsettled messages go back to the broker.

        Guarantee: returns within half a second; a broker that doesn't answer is left to a thread.
        """
        connection, self._connection = self._connection, None
        if connection is None:
            return
        closing = asyncio.ensure_future(in_thread(lambda: _close(connection)))
        await asyncio.wait({closing}, timeout=_CLOSE_SECONDS)
        if not closing.done():
            closing.cancel()

    def _drop(self, *, steady_resets: bool) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if steady_resets:
            now = asyncio.get_running_loop().time()
            self._failures = 0 if now - self._opened_at >= _STEADY_SECONDS else self._failures + 1
        # Nobody waits for the rest of a lost connection to be cleared away.
        task = asyncio.ensure_future(in_thread(lambda: _close(connection)))
        _closing.add(task)
        task.add_done_callback(_closing.discard)

    async def _wait(self) -> None:
        delay = self._backoff.delay(self._failures, random.random())  # noqa: S311 - jitter, no secret
        await asyncio.sleep(delay.total_seconds())


# The loop keeps only weak references to tasks.
_closing: set[asyncio.Future[None]] = set()


def _close(connection: Connection) -> None:
    try:
        connection.close()
    except Exception:  # the outermost edge of the closing thread: nothing is left to do about it
        log.exception("could not close the connection to %s", connection.broker)
