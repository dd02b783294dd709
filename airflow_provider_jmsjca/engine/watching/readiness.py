"""Notices that messages are there, without consuming them."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import deque
from datetime import timedelta

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.engine.connecting.async_connection import AsyncConnection
from airflow_provider_jmsjca.engine.watching.looks import looks_over
from airflow_provider_jmsjca.engine.watching.peek import Ready
from airflow_provider_jmsjca.errors import JmsError, PoisonMessageError, TransientBrokerError
from airflow_provider_jmsjca.transports.base import (
    Connection,
    ConnectionState,
    Consumer,
    Received,
    Subscription,
)

log = logging.getLogger(__name__)

# After so many messages in a row without waiting, other tasks of the loop get a turn.
_MESSAGES_PER_TURN = 64

# How long closing is waited for. A cancelled trigger has to be gone soon; the thread closes on.
_CLOSE_SECONDS = 0.4


class _Link:
    """What arrives over one consumer; its callbacks run on the connection's thread."""

    def __init__(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        self.connection = connection
        self.consumer: Consumer | None = None
        self.arrived: deque[Received] = deque()
        self.changed = asyncio.Event()
        self.lost: JmsError | None = None
        self._loop = loop
        self._told = False

    def on_received(self, received: Received) -> None:
        self.arrived.append(received)
        # One call into the loop for all that arrives before the loop gets to it.
        if not self._told:
            self._told = True
            self._tell()

    def on_lost(self, error: JmsError) -> None:
        self.lost = error
        self._tell()

    def _tell(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            log.debug("The event loop is closed; the broker has the messages back")

    def _wake(self) -> None:
        self._told = False
        self.changed.set()


class MessageStream:
    """An endless asynchronous iterator over what arrives on one subscription.

    The subscription's prefetch bounds how many messages are held here. Reconnects by itself; then whatever
    was not settled arrives again, as a new `Received` with the same message id where the broker keeps it.

    For one task of one event loop. To settle what comes, use `DeliveryStream`.

    Guarantee: nothing is settled. On cancellation and on `aclose` all messages go back.
    """

    def __init__(self, connection: AsyncConnection, subscription: Subscription) -> None:
        self._connection = connection
        self._subscription = subscription
        self._link: _Link | None = None
        self._turn = 0

    def __aiter__(self) -> MessageStream:
        """Return itself."""
        return self

    async def __anext__(self) -> Received:
        """Wait for the next message; connect first where needed, for as long as it takes.

        Raises:
            PermanentBrokerError: The broker refuses the connection or the subscription.
            ConfigurationError: The settings or the subscription can't work on this broker.
        """
        while True:
            link = self._link
            if link is not None and link.lost is not None and link.consumer is not None:
                await self._leave(link.connection, link.consumer)
            if link is None or link.lost is not None:
                self._link = link = await self._open()
            if link.arrived:
                self._turn += 1
                if self._turn % _MESSAGES_PER_TURN == 0:
                    await asyncio.sleep(0)
                received = link.arrived.popleft()
                if not received.is_stale:
                    return received
                continue  # handed back meanwhile: it arrives again
            link.changed.clear()
            if not link.arrived and link.lost is None:
                await link.changed.wait()

    async def aclose(self) -> None:
        """End the stream; unsettled messages go back.

        Guarantee: returns within half a second; a broker that doesn't answer is left to a thread.
        """
        link, self._link = self._link, None
        try:
            # One that counts as lost, because its settings have changed, may be up.
            up = link is not None and link.connection.state is ConnectionState.UP
            if link is not None and link.consumer is not None and up:
                closing = asyncio.ensure_future(self._connection.in_thread(link.consumer.close))
                closing.add_done_callback(_log_failure)
                await asyncio.wait({closing}, timeout=_CLOSE_SECONDS)
        finally:
            self._connection.release()

    async def _leave(self, connection: Connection, consumer: Consumer) -> None:
        """Hand back what a connection holds that is up, but not the one to use any more."""
        if connection.state is ConnectionState.UP:
            try:
                await self._connection.in_thread(consumer.close)
            except JmsError as error:
                log.debug("Closing the consumer failed; the messages go back with the connection: %s", error)

    async def _open(self) -> _Link:
        while True:
            connection = await self._connection.get()
            link = _Link(connection, asyncio.get_running_loop())
            self._connection.on_lost(link.on_lost)
            try:
                link.consumer = await self._connection.in_thread(
                    functools.partial(connection.consume, self._subscription, link.on_received),
                    undo=lambda consumer: consumer.close(),
                )
            except TransientBrokerError as error:
                self._connection.failed(error)
                continue
            return link


def _log_failure(closing: asyncio.Future[None]) -> None:
    if not closing.cancelled() and (error := closing.exception()) is not None:
        log.warning("Closing the consumer failed; its messages go back when the connection ends: %s", error)


class QueueWatch:
    """Looks whether a queue holds messages.

    Brokers that can be browsed are, which doesn't bring messages nearer to a limit of deliveries. On others
    one message is received and handed back, which may count as a delivery. Either may set redelivered flags.

    For one task of one event loop. Guarantee: it consumes nothing, also when cancelled or killed.
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
            connection: Where.
            queue: A queue, not a topic.
            selector: Only messages that match count.
            poll: Time between two looks at an empty queue, for brokers that can be browsed; longer the more
                queues of the broker are watched in this process, 100 seconds for 1,000.
        """
        self._connection = connection
        self._queue = queue
        self._selector = selector
        self._poll = poll

    async def wait(self) -> Ready:
        """Return as soon as messages are there; connect first where needed, for as long as it takes.

        Raises:
            PermanentBrokerError: The broker refuses.
            ConfigurationError: The settings or the selector can't work on this broker.
        """
        after = 0.0
        while True:
            connection = await self._connection.get()
            if not connection.capabilities.browse:
                return await self._receive_and_hand_back()
            try:
                found = await self._look(connection, after)
            except TransientBrokerError as error:
                self._connection.failed(error)
                after = 0.0
                continue
            if found is not None:
                return found
            after = self._poll.total_seconds()

    async def look(self) -> Ready | None:
        """Return what is there now, or `None` if nothing is; one attempt.

        Raises:
            CapabilityError: The broker can't be browsed.
            JmsError: As the transport says.
        """
        connection = await self._connection.get()
        return await self._look(connection)

    def close(self) -> None:
        """Give the connection back."""
        self._connection.release()

    async def _look(self, connection: Connection, after: float = 0.0) -> Ready | None:
        looks = looks_over(connection)
        message = await looks.look(connection, self._queue, self._selector, after=after)
        return None if message is None else Ready(message=message)

    async def _receive_and_hand_back(self) -> Ready:
        stream = MessageStream(
            self._connection, Subscription(destination=self._queue, selector=self._selector, prefetch=1)
        )
        try:
            received = await anext(stream)
            try:
                message = received.message
            except PoisonMessageError as error:
                log.warning("A message on %s can't be decoded: %s", self._queue, error)
                return Ready(message=None)
            return Ready(message=message, deliveries=message.delivery_count or 0)
        finally:
            await stream.aclose()
