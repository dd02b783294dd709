"""The messages of one queue or topic subscription, and their dispatch to consumers."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from typing import Protocol, TypeAlias

from airflow_provider_jmsjca.core.message import JmsMessage

Position: TypeAlias = tuple[int, int]
START: Position = (-10, 0)
END: Position = (1, 0)
_COMPACT_FROM = 64


class QueuedMessage:
    """One message in one queue.

    Attributes:
        position: The message's place in the queue: priority first, then the order of arrival. It never
            changes, so a returned message precedes all later messages of its priority.
        ready: `False` while a consumer holds the message.
        is_removed: `True` once the message is settled or expired; a later compaction removes it.
        deliveries: Number of earlier deliveries.
    """

    __slots__ = ("deliveries", "group", "is_removed", "message", "position", "ready")

    def __init__(self, message: JmsMessage, sequence: int) -> None:
        self.message = message
        self.position: Position = (-message.priority, sequence)
        self.ready = True
        self.is_removed = False
        self.deliveries = 0
        group = message.properties.get("JMSXGroupID")
        self.group = None if group is None else str(group)

    def expired(self, now_ms: int) -> bool:
        """Whether the message's time to live is over."""
        return 0 < self.message.expiration <= now_ms


class QueueConsumer(Protocol):
    """The queue's view of a consumer.

    Attributes:
        position: Position at which the queue continues its search for this consumer: no earlier message can
            be delivered to the consumer now.
    """

    position: Position

    def has_credit(self) -> bool:
        """Whether the consumer's prefetch window has room."""

    def matches(self, message: JmsMessage) -> bool:
        """Whether the consumer's selector matches."""

    def take(self, entry: QueuedMessage) -> None:
        """Receive the message; it is unsettled from now on."""


class MessageQueue:
    """Ordered messages, dispatched to consumers in round-robin. Guarded by the broker's lock."""

    def __init__(self) -> None:
        self._entries: list[tuple[int, int, QueuedMessage]] = []
        self._removed_count = 0
        self._takers: deque[QueueConsumer] = deque()
        self._group_owners: dict[str, QueueConsumer] = {}

    @property
    def idle(self) -> bool:
        """Whether the queue has neither messages nor consumers."""
        return not self._takers and len(self._entries) == self._removed_count

    @property
    def consumer_count(self) -> int:
        """Number of consumers of the queue."""
        return len(self._takers)

    @property
    def has_consumer(self) -> bool:
        """Whether the queue has a consumer."""
        return bool(self._takers)

    def add(self, entry: QueuedMessage) -> None:
        """Insert a new message at its position."""
        insort(self._entries, (*entry.position, entry))
        self._step_back(entry.position)

    def restore(self, entry: QueuedMessage) -> None:
        """Make a message available again after a consumer returned it."""
        if not entry.is_removed:
            entry.ready = True
            self._step_back(entry.position)

    def remove(self, entry: QueuedMessage) -> None:
        """Remove a message."""
        if entry.is_removed:
            return
        entry.is_removed = True
        self._removed_count += 1
        if self._removed_count > _COMPACT_FROM and self._removed_count * 2 > len(self._entries):
            self._entries = [item for item in self._entries if not item[2].is_removed]
            self._removed_count = 0

    def entries(self, now_ms: int) -> list[QueuedMessage]:
        """Return the messages in order, including in-flight ones."""
        living = [entry for *_, entry in self._entries if not entry.is_removed]
        for entry in living:
            if entry.ready and entry.expired(now_ms):
                self.remove(entry)
        return [entry for entry in living if not entry.is_removed]

    def drop_non_persistent(self) -> None:
        """Remove non-persistent messages, as a restart of the broker does."""
        for *_, entry in self._entries[:]:
            if not entry.message.persistent:
                self.remove(entry)

    def clear(self) -> None:
        """Remove every message."""
        for *_, entry in self._entries[:]:
            self.remove(entry)

    def join(self, consumer: QueueConsumer) -> None:
        """Add a consumer."""
        consumer.position = START
        self._takers.append(consumer)

    def leave(self, consumer: QueueConsumer) -> None:
        """Remove a consumer and release its message groups."""
        if consumer in self._takers:
            self._takers.remove(consumer)
        owned = [group for group, owner in self._group_owners.items() if owner is consumer]
        for group in owned:
            del self._group_owners[group]
        if owned:
            self._step_back(START)

    def dispatch(self, now_ms: int) -> None:
        """Dispatch messages in round-robin while there are messages and prefetch windows have room."""
        without_luck = 0
        while without_luck < len(self._takers):
            consumer = self._takers[0]
            self._takers.rotate(-1)
            entry = self._next_for(consumer, now_ms) if consumer.has_credit() else None
            if entry is None:
                without_luck += 1
                continue
            without_luck = 0
            entry.ready = False
            consumer.take(entry)

    def _next_for(self, consumer: QueueConsumer, now_ms: int) -> QueuedMessage | None:
        # `bisect_left` finds the entry at this position, because a tuple sorts before any longer tuple that
        # starts with it.
        for index in range(bisect_left(self._entries, consumer.position), len(self._entries)):
            entry = self._entries[index][2]
            if entry.is_removed or not entry.ready:
                continue
            if entry.expired(now_ms):
                # Only marked here, because the list must not change during this loop.
                entry.is_removed = True
                self._removed_count += 1
            elif self._may_have(consumer, entry):
                consumer.position = entry.position
                return entry
        consumer.position = END
        return None

    def _may_have(self, consumer: QueueConsumer, entry: QueuedMessage) -> bool:
        if entry.group is None:
            return consumer.matches(entry.message)
        owner = self._group_owners.get(entry.group)
        if owner is not None:
            return owner is consumer and consumer.matches(entry.message)
        if not consumer.matches(entry.message):
            return False
        self._group_owners[entry.group] = consumer
        return True

    def _step_back(self, position: Position) -> None:
        for consumer in self._takers:
            consumer.position = min(consumer.position, position)
