"""Units of work of the in-process broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from airflow_provider_jmsjca.errors import JmsError, PermanentBrokerError
from airflow_provider_jmsjca.transports.base import Outgoing, Received
from airflow_provider_jmsjca.transports.memory.consumer import MemoryConsumer

if TYPE_CHECKING:
    from airflow_provider_jmsjca.transports.memory.connection import MemoryConnection


class MemoryUnitOfWork:
    """Sends and acknowledgements, carried out in one step; see `transports.base.UnitOfWork`."""

    def __init__(self, connection: MemoryConnection) -> None:
        self._connection = connection
        self._sends: list[Outgoing] = []
        self._received: list[tuple[MemoryConsumer, Received]] = []
        self._done = False

    def send(self, outgoing: Outgoing) -> None:
        """Add a message to send."""
        with self._connection.guard():
            self._refuse_if_done()
            self._sends.append(outgoing)

    def acknowledge(self, received: Received) -> None:
        """Add a received message to settle; a stale one is ignored."""
        with self._connection.guard():
            self._refuse_if_done()
            consumer = received.consumer
            if isinstance(consumer, MemoryConsumer) and consumer.enlist(received, self):
                self._received.append((consumer, received))

    def commit(self, meanwhile: Callable[[], object] | None = None) -> None:
        """Send and settle all of it, or nothing."""
        del meanwhile  # there is nothing to wait for
        with self._connection.guard():
            self._refuse_if_done()
            try:
                for item in self._sends:
                    self._connection.server.check(item.destination)
            except JmsError:
                self.rollback()
                raise
            self._done = True
            for consumer, received in self._received:
                consumer.settle(received)
            self._connection.server.accept(self._sends)

    def rollback(self) -> None:
        """Forget the sends; the acknowledged messages are unsettled again."""
        with self._connection.server.lock:
            self._refuse_if_done()
            self._done = True
            for consumer, received in self._received:
                consumer.release(received)

    def _refuse_if_done(self) -> None:
        if self._done:
            raise PermanentBrokerError("this unit of work has been committed or rolled back already")
