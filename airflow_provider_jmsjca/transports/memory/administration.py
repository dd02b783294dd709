"""Administration of the queues of a `vm://` broker."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import ClassVar

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.transports.administration import (
    BrokerResource,
    MessageSelection,
    QueueAdministration,
    QueueOperation,
    QueueStatistics,
)
from airflow_provider_jmsjca.transports.base import Connection
from airflow_provider_jmsjca.transports.memory.broker import MemoryBroker
from airflow_provider_jmsjca.transports.selecting import copy_selected, delete_selected, move_selected


class MemoryAdministration(QueueAdministration):
    """Administration with all operations, but without counts of enqueued and dequeued messages.

    Args:
        connection: A connection to the broker.
        server: The broker.
    """

    selects_ids: ClassVar[bool] = True

    def __init__(self, connection: Connection, server: MemoryBroker) -> None:
        super().__init__(connection.broker)
        self._connection = connection
        self._server = server

    @property
    def operations(self) -> frozenset[QueueOperation]:
        """All operations."""
        return frozenset(QueueOperation)

    def queues(self) -> list[QueueStatistics]:
        """Return every queue, sorted by name."""
        with self._server.lock:
            return [self._statistics(name) for name in self._server.queue_names()]

    def statistics(self, queue: str) -> QueueStatistics | None:
        """Return the figures of one queue, `None` if it does not exist."""
        with self._server.lock:
            return self._statistics(queue) if queue in self._server.queue_names() else None

    def browse(
        self, queue: str, *, selector: str | None = None, skip: int = 0, limit: int = 100
    ) -> Sequence[JmsMessage]:
        """Return a page of messages in queue order."""
        found = self._connection.browse(Destination.queue(queue), selector)
        return list(islice(found, skip, skip + limit))

    def move(self, queue: str, target: str, selection: MessageSelection) -> int:
        """Move messages to the end of another queue; return their number."""
        return move_selected(self._connection, queue, target, selection)

    def copy(self, queue: str, target: str, selection: MessageSelection) -> int:
        """Copy messages to another queue; return their number."""
        return copy_selected(self._connection, queue, target, selection)

    def delete(self, queue: str, selection: MessageSelection) -> int:
        """Delete messages for good; return their number."""
        return delete_selected(self._connection, queue, selection)

    def resources(self) -> list[BrokerResource]:
        """Return an empty list: the broker has no limits."""
        return []

    def time(self) -> datetime:
        """Return the time by the broker's clock."""
        return datetime.fromtimestamp(self._server.now_ms() / 1000, UTC)

    def _statistics(self, name: str) -> QueueStatistics:
        messages = self._server.queue(name)
        entries = messages.entries(self._server.now_ms())
        first = entries[0].message.timestamp if entries else None
        return QueueStatistics(
            name=name,
            messages=len(entries),
            in_flight=sum(not each.ready for each in entries),
            consumers=messages.consumer_count,
            oldest=None if first is None else datetime.fromtimestamp(first / 1000, UTC),
        )
