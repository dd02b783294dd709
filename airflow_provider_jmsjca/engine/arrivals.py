"""What a consumer receives, handed from the connection's thread to the one that works on it."""

from __future__ import annotations

import queue

from airflow_provider_jmsjca.errors import ConnectionLostError, JmsError
from airflow_provider_jmsjca.transports.base import Connection, Received, Subscription

# So many at a time, that a stop request is looked at often enough.
_HANDFUL = 256


class Arrivals:
    """A consumer and the deliveries not yet looked at; the prefetch bounds how many.

    Args:
        connection: Where to consume.
        subscription: What to receive.

    Raises:
        CapabilityError: As `Connection.consume`, and so are the others.
    """

    def __init__(self, connection: Connection, subscription: Subscription) -> None:
        self._queue: queue.SimpleQueue[Received | None] = queue.SimpleQueue()
        self._loss: JmsError | None = None
        self._connection = connection
        connection.on_lost(self._lose)
        self._consumer = connection.consume(subscription, self._queue.put)

    def renew(self, subscription: Subscription) -> None:
        """Give back what was received but not settled, and begin anew with a fresh consumer.

        Raises:
            ConnectionLostError: The connection is gone.
        """
        self._consumer.close()
        self._consumer = self._connection.consume(subscription, self._queue.put)

    def _lose(self, reason: JmsError) -> None:
        self._loss = reason
        self._queue.put(None)

    def take(self, timeout: float) -> list[Received]:
        """Return what has arrived, in order; empty if nothing came within so many seconds.

        Raises:
            ConnectionLostError: The connection is gone, and all that arrived with it.
        """
        found: list[Received] = []
        try:
            item = self._queue.get(timeout=timeout)
            while True:
                if item is None or self._loss is not None:
                    raise ConnectionLostError(str(self._loss)) from self._loss
                if item.consumer is self._consumer and item.generation == self._consumer.generation:
                    found.append(item)
                if len(found) >= _HANDFUL:
                    break
                item = self._queue.get_nowait()
        except queue.Empty:
            pass
        return found
