"""Waits for messages on a queue without consuming them."""

from __future__ import annotations

import asyncio
import functools
from datetime import timedelta

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.engine.connecting.async_connection import AsyncConnection
from airflow_provider_jmsjca.engine.watching.peek import Ready
from airflow_provider_jmsjca.engine.watching.shared_probes import probes_of
from airflow_provider_jmsjca.errors import JmsError, PoisonMessageError, TransientBrokerError
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.transports.base import (
    Connection,
    ConnectionState,
    Received,
    Subscription,
)

log = safe_logger(__name__)

# Maximum seconds to wait for the close of a consumer, because a cancelled trigger has to end soon. After
# that, the thread finishes the close.
_CLOSE_SECONDS = 0.4


class _FirstMessage:
    """Waits for the first message of a consumer, until the connection is lost or its settings change.

    `on_received` and `on_lost` may be called in any thread, `on_stale` in the event loop.

    Attributes:
        found: The message; `None` if the connection was lost or its settings changed before one arrived.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.found: asyncio.Future[Received | None] = loop.create_future()
        self._loop = loop

    def on_received(self, received: Received) -> None:
        self._set_found(received)

    def on_lost(self, _error: JmsError) -> None:
        self._set_found(None)

    def on_stale(self) -> None:
        self._set(None)

    def _set_found(self, found: Received | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._set, found)
        except RuntimeError:
            log.debug("The event loop is closed; the broker has the message back")

    def _set(self, found: Received | None) -> None:
        if not self.found.done():
            self.found.set_result(found)


def _log_failure(closing: asyncio.Future[None]) -> None:
    if not closing.cancelled() and (error := closing.exception()) is not None:
        log.warning("Closing the consumer failed; its messages go back when the connection ends: %s", error)


class QueueWatch:
    """Checks whether a queue has messages.

    The queue is browsed where the broker allows it, which doesn't count as a delivery. Otherwise one message
    is received and handed back to the broker, which may count as a delivery. Both may set redelivered flags.

    Use an object in one task of one event loop. Guarantee: the watch consumes nothing, even if the task is
    cancelled or the process is killed.
    """

    def __init__(
        self,
        connection: AsyncConnection,
        queue: Destination,
        selector: str | None = None,
        *,
        poll: timedelta = timedelta(seconds=1),
    ) -> None:
        """Prepare to watch.

        Args:
            connection: Source of connections.
            queue: A queue, not a topic.
            selector: Only matching messages count.
            poll: Time between two probes of an empty queue, where the broker can be browsed. It grows with
                the number of queues of the broker that this process watches: 100 seconds for 1,000.
        """
        self._connection = connection
        self._queue = queue
        self._selector = selector
        self._poll = poll

    async def wait(self) -> Ready:
        """Return as soon as the queue has messages; connects first if needed, without a time limit.

        Raises:
            PermanentBrokerError: The broker refuses.
            ConfigurationError: The settings or the selector don't work on this broker.
        """
        after = 0.0
        while True:
            connection = await self._connection.get()
            if not connection.capabilities.browse:
                return await self._receive_and_hand_back()
            try:
                with self._connection.noting_refusals():
                    found = await self._probe(connection, after)
            except TransientBrokerError as error:
                self._connection.failed(error)
                after = 0.0
                continue
            if found is not None:
                return found
            after = self._poll.total_seconds()

    async def probe(self) -> Ready | None:
        """Probe the queue once, and return its first message; `None` if there is none.

        Raises:
            CapabilityError: The broker can't be browsed.
            JmsError: The probe failed.
        """
        connection = await self._connection.get()
        return await self._probe(connection)

    def close(self) -> None:
        """Release the connection."""
        self._connection.release()

    async def _probe(self, connection: Connection, after: float = 0.0) -> Ready | None:
        probes = probes_of(connection)
        message = await probes.probe(connection, self._queue, self._selector, after=after)
        return None if message is None else Ready(message=message)

    async def _receive_and_hand_back(self) -> Ready:
        try:
            while True:
                connection = await self._connection.get()
                try:
                    found = await self._receive_from(connection)
                except TransientBrokerError as error:
                    self._connection.failed(error)
                    continue
                if found is not None:
                    return found
        finally:
            self._connection.release()

    async def _receive_from(self, connection: Connection) -> Ready | None:
        """Wait for a message, receive it, and hand it back to the broker.

        Guarantee: on cancellation the call returns within half a second. If the broker doesn't answer in that
        time, a thread finishes the work.

        Returns:
            The message; `None` if the connection is lost or its settings change before a message arrives.

        Raises:
            TransientBrokerError: The consumer can't be opened now.
        """
        first = _FirstMessage(asyncio.get_running_loop())
        self._connection.on_lost(first.on_lost)
        self._connection.on_stale(first.on_stale)
        one = Subscription(destination=self._queue, selector=self._selector, prefetch=1)
        with self._connection.noting_refusals():
            consumer = await self._connection.in_thread(
                functools.partial(connection.consume, one, first.on_received),
                undo=lambda consumer: consumer.close(),
            )
        try:
            received = await first.found
            return None if received is None or received.is_stale else self._ready(received)
        finally:
            # The connection may be up even without a message, if the settings have changed.
            if connection.state is ConnectionState.UP:
                closing = asyncio.ensure_future(self._connection.in_thread(consumer.close))
                closing.add_done_callback(_log_failure)
                await asyncio.wait({closing}, timeout=_CLOSE_SECONDS)

    def _ready(self, received: Received) -> Ready:
        try:
            message = received.message
        except PoisonMessageError as error:
            log.warning("A message on %s can't be decoded: %s", self._queue, error)
            return Ready(message=None)
        return Ready(message=message, deliveries=message.delivery_count or 0)
