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
        gone: `True` once the message is settled or expired; a later compaction removes it.
        deliveries: Number of earlier deliveries.
    """

    __slots__ = ("deliveries", "gone", "group", "message", "position", "ready")

    def __init__(self, message: JmsMessage, sequence: int) -> None:
        self.message = message
        self.position: Position = (-message.priority, sequence)
        self.ready = True
        self.gone = False
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

    def wants(self, message: JmsMessage) -> bool:
        """Whether the consumer's selector matches."""

    def take(self, entry: QueuedMessage) -> None:
        """Receive the message; it is unsettled from now on."""


class MessageQueue:
    """Ordered messages, dispatched to consumers in round-robin. Guarded by the broker's lock."""

    def __init__(self) -> None:
        self._entries: list[tuple[int, int, QueuedMessage]] = []
        self._gone = 0
        self._takers: deque[QueueConsumer] = deque()
        self._group_owners: dict[str, QueueConsumer] = {}

    @property
    def idle(self) -> bool:
        """Whether the queue has neither messages nor consumers."""
        return not self._takers and len(self._entries) == self._gone

    @property
    def takers(self) -> int:
        """Number of consumers of the queue."""
        return len(self._takers)

    @property
    def taken(self) -> bool:
        """Whether the queue has a consumer."""
        return bool(self._takers)

    def add(self, entry: QueuedMessage) -> None:
        """Insert a new message at its position."""
        insort(self._entries, (*entry.position, entry))
        self._step_back(entry.position)

    def restore(self, entry: QueuedMessage) -> None:
        """Make a message available again after a consumer returned it."""
        if not entry.gone:
            entry.ready = True
            self._step_back(entry.position)

    def remove(self, entry: QueuedMessage) -> None:
        """Remove a message."""
        if entry.gone:
            return
        entry.gone = True
        self._gone += 1
        if self._gone > _COMPACT_FROM and self._gone * 2 > len(self._entries):
            self._entries = [item for item in self._entries if not item[2].gone]
            self._gone = 0

    def entries(self, now_ms: int) -> list[QueuedMessage]:
        """Return the messages in order, including those held by consumers."""
        living = [entry for *_, entry in self._entries if not entry.gone]
        for entry in living:
            if entry.ready and entry.expired(now_ms):
                self.remove(entry)
        return [entry for entry in living if not entry.gone]

    def drop_non_persistent(self) -> None:
        """Remove non-persistent messages, as a restart of the broker does."""
        for *_, entry in self._entries[:]:
            if not entry.message.persistent:
                self.remove(entry)

    def clear(self) -> None:
        """Remove every message."""
        for *_, entry in self._entries[:]:
            self.remove(entry)

    def join(self, taker: QueueConsumer) -> None:
        """Add a consumer."""
        taker.position = START
        self._takers.append(taker)

    def leave(self, taker: QueueConsumer) -> None:
        """Remove a consumer and release its message groups."""
        if taker in self._takers:
            self._takers.remove(taker)
        owned = [group for group, owner in self._group_owners.items() if owner is taker]
        for group in owned:
            del self._group_owners[group]
        if owned:
            self._step_back(START)

    def dispatch(self, now_ms: int) -> None:
        """Dispatch messages in round-robin while there are messages and prefetch windows have room."""
        without_luck = 0
        while without_luck < len(self._takers):
            taker = self._takers[0]
            self._takers.rotate(-1)
            entry = self._next_for(taker, now_ms) if taker.has_credit() else None
            if entry is None:
                without_luck += 1
                continue
            without_luck = 0
            entry.ready = False
            taker.take(entry)

    def _next_for(self, taker: QueueConsumer, now_ms: int) -> QueuedMessage | None:
        # `bisect_left` finds the entry at this position, because a tuple sorts before any longer tuple that
        # starts with it.
        for index in range(bisect_left(self._entries, taker.position), len(self._entries)):
            entry = self._entries[index][2]
            if entry.gone or not entry.ready:
                continue
            if entry.expired(now_ms):
                # Only marked here, because the list must not change during this loop.
                entry.gone = True
                self._gone += 1
            elif self._may_have(taker, entry):
                taker.position = entry.position
                return entry
        taker.position = END
        return None

    def _may_have(self, taker: QueueConsumer, entry: QueuedMessage) -> bool:
        if entry.group is None:
            return taker.wants(entry.message)
        owner = self._group_owners.get(entry.group)
        if owner is not None:
            return owner is taker and taker.wants(entry.message)
        if not taker.wants(entry.message):
            return False
        self._group_owners[entry.group] = taker
        return True

    def _step_back(self, position: Position) -> None:
        for taker in self._takers:
            taker.position = min(taker.position, position)
