"""Receives messages together with the unit of work that settles them."""

from __future__ import annotations

import contextlib
import queue
from dataclasses import dataclass

from airflow_provider_jmsjca.errors import ConnectionLostError, JmsError
from airflow_provider_jmsjca.transports.base import Connection, Consumer, Received, Subscription, UnitOfWork


@dataclass(frozen=True, slots=True)
class ReceivedUnit:
    """Messages of one consumer, and the unit of work that may settle them.

    Attributes:
        messages: At least one message, in order of arrival; all are unsettled.
        work: A new unit of work, which does not contain the messages yet.
    """

    messages: list[Received]
    work: UnitOfWork


class BufferedConsumer:
    """A consumer with a buffer of deliveries, limited by the prefetch. Use it in one thread.

    Args:
        connection: The connection.
        subscription: The subscription.

    Attributes:
        subscription: The current subscription.

    Raises:
        JmsError: As for `Connection.consume`.
    """

    def __init__(self, connection: Connection, subscription: Subscription) -> None:
        self.subscription = subscription
        self._queue: queue.SimpleQueue[Received | None] = queue.SimpleQueue()
        self._loss: JmsError | None = None
        self._connection = connection
        connection.on_lost(self._on_lost)
        self._consumer: Consumer = connection.consume(subscription, self._queue.put)

    @property
    def settles_in_order(self) -> bool:
        """Whether an unsettled message blocks later ones."""
        return self._consumer.settles_in_order

    def renew(self, subscription: Subscription) -> None:
        """Hand unsettled messages back to the broker, and consume with a new subscription.

        Raises:
            ConnectionLostError: The connection is lost.
        """
        self._consumer.close()
        self.subscription = subscription
        self._consumer = self._connection.consume(subscription, self._queue.put)

    def close(self) -> None:
        """Close the consumer; the broker takes back unsettled messages, also if the connection is lost."""
        with contextlib.suppress(ConnectionLostError):
            self._consumer.close()

    def _on_lost(self, reason: JmsError) -> None:
        self._loss = reason
        self._queue.put(None)

    def take(self, at_most: int, *, within: float, each_within: float = 0.0) -> list[Received]:
        """Return the next deliveries in order of arrival, and wait for them if necessary.

        Args:
            at_most: Maximum number of deliveries.
            within: Seconds to wait for the first delivery.
            each_within: Seconds to wait for each further delivery.

        Returns:
            The deliveries; empty if none arrived in time.

        Raises:
            ConnectionLostError: The connection is lost, and the buffered deliveries are invalid.
        """
        found: list[Received] = []
        while len(found) < at_most:
            try:
                received = self._queue.get(timeout=each_within if found else within)
            except queue.Empty:
                break
            if received is None or self._loss is not None:
                raise ConnectionLostError(str(self._loss)) from self._loss
            if received.consumer is self._consumer and not received.is_stale:
                found.append(received)
        return found

    def next_unit(self, at_most: int, *, within: float, each_within: float = 0.0) -> ReceivedUnit | None:
        """Return the next messages together with their unit of work; `None` if none arrived in time.

        The arguments and errors are those of `take`.
        """
        messages = self.take(at_most, within=within, each_within=each_within)
        return ReceivedUnit(messages, messages[0].unit()) if messages else None
