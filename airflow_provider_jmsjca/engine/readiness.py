"""Notices that messages are there, without consuming them."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import timedelta

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.engine.async_connection import AsyncConnection
from airflow_provider_jmsjca.engine.message_stream import MessageStream
from airflow_provider_jmsjca.engine.threads import in_thread
from airflow_provider_jmsjca.errors import PoisonMessageError, TransientBrokerError
from airflow_provider_jmsjca.transports.base import Connection, Subscription

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """Messages are there.

    Attributes:
        message: The one seen; `None` if it can't be decoded.
        deliveries: How often the broker has delivered it, our look included; 0 where a look doesn't count.
    """

    message: JmsMessage | None
    deliveries: int = 0


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
            poll: Time between two looks at an empty queue, for brokers that can be browsed.
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
        while True:
            connection = await self._connection.get()
            if not connection.capabilities.browse:
                return await self._receive_and_hand_back()
            try:
                found = await self._look(connection)
            except TransientBrokerError as error:
                self._connection.failed(error)
                continue
            if found is not None:
                return found
            await asyncio.sleep(self._poll.total_seconds())

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

    async def _look(self, connection: Connection) -> Ready | None:
        return await in_thread(lambda: browse_once(connection, self._queue, self._selector))

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


def browse_once(connection: Connection, queue: Destination, selector: str | None) -> Ready | None:
    """Look at the first message of a queue.

    Returns:
        `None` if there is none.

    Raises:
        CapabilityError: The broker can't be browsed.
    """
    messages = connection.browse(queue, selector)
    try:
        message = next(messages, None)
    except PoisonMessageError as error:
        log.warning("A message on %s can't be decoded: %s", queue, error)
        return Ready(message=None)
    finally:
        close = getattr(messages, "close", None)
        if close is not None:
            close()
    return None if message is None else Ready(message=message)
