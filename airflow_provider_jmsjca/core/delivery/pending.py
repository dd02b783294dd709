"""Pending messages: their order, and those that a unit of work has reserved."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, MutableSequence, Sequence
from itertools import chain

from airflow_provider_jmsjca.core.delivery.states import InFlightMessage, Unit


class RoundRobin:
    """Selects destinations in round robin: one message per turn, in cycles.

    In a cycle, a destination gives at most `quantity` messages; empty destinations are skipped. When no
    destination can give another message, the next cycle begins with the first destination that has one.

    Args:
        destinations: Number of destinations.
        quantity: Maximum number of messages of each destination in a cycle.

    Source: I4-I6, I51.
    """

    def __init__(self, destinations: int, quantity: int) -> None:
        self._quantity = quantity
        self._given = [0] * destinations
        self._next = 0

    def take(self, has_any: Callable[[int], bool]) -> int | None:
        """Give the turn to a destination and return its index.

        Args:
            has_any: Returns whether the destination with an index has a message to give.

        Returns:
            The index; `None` if no destination has a message. The order of turns is then unchanged.
        """
        count = len(self._given)
        for step in range(count):
            candidate = (self._next + step) % count
            if self._given[candidate] < self._quantity and has_any(candidate):
                return self._turn_of(candidate)
        for candidate in range(count):
            if has_any(candidate):
                self._given = [0] * count
                return self._turn_of(candidate)
        return None

    def _turn_of(self, destination: int) -> int:
        self._given[destination] += 1
        self._next = (destination + 1) % len(self._given)
        return destination


class PendingQueue:
    """Pending messages in order of arrival, some of which must wait for a unit to end.

    If a unit has taken a message of a group, other units can't take messages of the group before it ends. A
    message that is redelivered after its connection was lost waits while its old handler call still runs.

    If there are several destinations, each has a queue, and they take turns. Messages that were put back are
    taken first. They use no turn, because they have used a turn before.

    A consumer that settles in order has its own queue. A unit that has taken a message from this queue is the
    queue's only user, and takes from no other queue. While the first message of the queue has to wait, the
    messages behind it wait too.

    Args:
        destinations: Number of destinations.
        quantity: Maximum number of messages of each destination in a cycle of turns.

    Attributes:
        count: Number of pending messages.
        size: Memory in bytes that large pending messages take.
        claims: Number of the unit that has reserved a group or a message, by `("group", group)` or
            `("message", key)`.
        owners: Number of the unit that has reserved a consumer, by the consumer's number.

    Source: I4.
    """

    def __init__(self, destinations: int, quantity: int) -> None:
        self.count = self.size = 0
        self._front: list[InFlightMessage] = []
        self._lines: tuple[deque[InFlightMessage], ...] = tuple(deque() for _ in range(destinations))
        self._turns = RoundRobin(destinations, quantity) if destinations > 1 else None
        self.claims: dict[tuple[str, str], int] = {}
        self._in_order: dict[int, deque[InFlightMessage]] = {}  # by consumer
        self.owners: dict[int, int] = {}
        # The consumer from which a unit takes, and no other message; other units take from any queue.
        self._consumers: dict[int | None, int | None] = {}

    def __iter__(self) -> Iterator[InFlightMessage]:
        """Yield all pending messages."""
        return chain(self._front, *self._lines, *self._in_order.values())

    def append(self, message: InFlightMessage) -> None:
        """Add a message at the end of its queue.

        A message from the in-progress queue is taken without a turn: it used a turn before it was put there.
        """
        self.count += 1
        arrival = message.arrival
        self.size += arrival.size
        if arrival.consumer is not None:
            self._queue_of(arrival.consumer).append(message)
        elif arrival.in_progress:
            self._front.append(message)
        else:
            self._lines[arrival.source].append(message)

    def push_front(self, messages: Sequence[InFlightMessage]) -> None:
        """Put the messages of one unit back in front of all others, in their order."""
        self.count += len(messages)
        for message in messages:
            self.size += message.arrival.size
        if messages and (consumer := messages[0].arrival.consumer) is not None:
            self._queue_of(consumer).extendleft(reversed(messages))
        else:
            self._front[:0] = messages

    def _queue_of(self, consumer: int) -> deque[InFlightMessage]:
        queue = self._in_order.get(consumer)
        if queue is None:
            queue = self._in_order[consumer] = deque()
        return queue

    def clear(self) -> None:
        """Remove all messages."""
        self.count = self.size = 0
        self._front.clear()
        self._in_order.clear()
        for line in self._lines:
            line.clear()

    @property
    def in_front(self) -> int:
        """Number of messages that are taken before all others, without a turn."""
        return len(self._front)

    def take(self, number: int | None) -> InFlightMessage | None:
        """Remove and return the first message that a unit may take; `None` if it may take no message.

        Args:
            number: Number of the unit; `None` for a new unit.
        """
        if not self.count:
            return None
        message: InFlightMessage | None
        if (
            self._turns is None
            and not (self.claims or self._in_order)
            and self._consumers.get(number) is None
        ):
            # Nothing is reserved, and no order but that of arrival.
            message = self._front.pop(0) if self._front else self._lines[0].popleft()
        else:
            message = self._take(number)
        if message is not None:
            self.count -= 1
            self.size -= message.arrival.size
        return message

    def _take(self, number: int | None) -> InFlightMessage | None:
        if self._in_order and (queue := self._offered_in_order(number)) is not None:
            return queue.popleft()
        if self._consumers.get(number) is not None:
            return None
        if self._front and (message := self._take_from(self._front, number)) is not None:
            return message
        if self._turns is None:
            return self._take_from(self._lines[0], number)
        source = self._turns.take(lambda each: self._find(self._lines[each], number) is not None)
        return None if source is None else self._take_from(self._lines[source], number)

    def offers_front(self, number: int | None) -> bool:
        """Return whether a unit may take a message without using a turn."""
        return self._consumers.get(number) is None and self._find(self._front, number) is not None

    def offers_turn(self, number: int | None) -> bool:
        """Return whether a destination has a message that a unit may take."""
        if self._in_order and self._offered_in_order(number) is not None:
            return True
        return self._consumers.get(number) is None and any(
            self._find(line, number) is not None for line in self._lines
        )

    def _offered_in_order(self, number: int | None) -> deque[InFlightMessage] | None:
        """Return the queue of a consumer whose first message a unit may take; `None` without such a queue."""
        taken_from: Iterable[int | None]
        if number is not None and number in self._consumers:
            taken_from = (self._consumers[number],)
        else:
            taken_from = (each for each in self._in_order if each not in self.owners)
        for consumer in taken_from:
            queue = None if consumer is None else self._in_order.get(consumer)
            if queue and self._is_free(queue[0], number):
                return queue
        return None

    def _take_from(
        self, line: MutableSequence[InFlightMessage], number: int | None
    ) -> InFlightMessage | None:
        index = self._find(line, number)
        if index is None:
            return None
        message = line[index]
        del line[index]
        return message

    def _find(self, line: MutableSequence[InFlightMessage], number: int | None) -> int | None:
        for index, message in enumerate(line):
            if self._is_free(message, number):
                return index
        return None

    def _is_free(self, message: InFlightMessage, number: int | None) -> bool:
        """Return whether no other unit has reserved a message or its group."""
        return not self.claims or (
            self.claims.get(("message", message.key), number) == number
            and (
                not message.arrival.group
                or self.claims.get(("group", message.arrival.group), number) == number
            )
        )

    def claim(self, unit: Unit, message: InFlightMessage) -> None:
        """Reserve the group and the consumer of a message for the unit that takes it."""
        arrival = message.arrival
        if arrival.group:
            self.claims["group", arrival.group] = unit.number
        if arrival.consumer is not None:
            self.owners[arrival.consumer] = unit.number
        self._consumers[unit.number] = arrival.consumer

    def claim_messages(self, unit: Unit) -> None:
        """Reserve all messages of a unit for this unit."""
        self.claims.update({("message", message.key): unit.number for message in unit.messages})

    def release(self, unit: Unit) -> None:
        """Release the group, the consumer and the messages that a unit has reserved."""
        consumer = self._consumers.pop(unit.number, None)
        if consumer is not None:
            del self.owners[consumer]
        if self.claims:
            self.claims = {claim: owner for claim, owner in self.claims.items() if owner != unit.number}


class InProgressTracking:
    """Tracks messages put into the in-progress queue and not yet received from it.

    A copy may arrive from the queue before the broker has confirmed that it was put there. Messages without
    an id can't be tracked, and aren't counted.

    Source: I9.
    """

    def __init__(self) -> None:
        self._in_flight: set[str] = set()
        self._pending: set[str] = set()
        self._early: set[str] = set()

    def __len__(self) -> int:
        return len(self._in_flight)

    def begin(self, message_id: str | None) -> None:
        """Record that a message is being put into the in-progress queue."""
        if message_id is not None:
            self._pending.add(message_id)

    def end(self, message_id: str | None, *, done: bool) -> None:
        """Record that putting a message into the in-progress queue is confirmed (`done`), or has failed."""
        if message_id not in self._pending or message_id is None:
            return
        self._pending.discard(message_id)
        if message_id in self._early:
            self._early.discard(message_id)
        elif done:
            self._in_flight.add(message_id)

    def came(self, message_id: str | None) -> None:
        """Record that a message was received from the in-progress queue."""
        if message_id in self._pending and message_id is not None:
            self._early.add(message_id)
        elif message_id is not None:
            self._in_flight.discard(message_id)

    def clear(self) -> None:
        """Forget all messages: no more will arrive over this connection."""
        self._in_flight.clear()
        self._pending.clear()
        self._early.clear()
