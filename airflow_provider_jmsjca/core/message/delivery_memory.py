"""Memory of messages that a process has already seen.

| driver or feature | remembers | by | how long | reason |
|---|---|---|---|---|
| threads, event loops | settled messages | identity | last 32,768 | a dead broker forgets acknowledgements |
| event loops | running handler calls | identity | until they end | they may end after a reconnect |
| event loops | handled deliveries | number | until settled | a refused commit changes no outcome |
| event loops | handled, not acknowledged | identity | last 32,768 | the broker will redeliver them |
| event loops | messages left unsettled | identity | last 32,768 | they can be neither delivered nor moved |
| duplicate elimination | handled messages | id | last 32,768 | WBIA recognises duplicates by the id alone |
| duplicate elimination | messages in flight | id | one connection | a duplicate waits for the outcome |
| sessions | returned messages | subscription, identity | last 32,768 | some brokers set no redelivered flag |
"""

from __future__ import annotations

import enum
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Hashable, Iterable
from collections.abc import Set as AbstractSet
from typing import Generic, NamedTuple, TypeVar

from airflow_provider_jmsjca.core.message.message import Identity

REMEMBERED = 32_768
"""Number of remembered messages of each kind; the WBIA adapter remembered one.

A busy RabbitMQ queue keeps as many acknowledgements in memory before it writes them to disk
(`queue_index_max_journal_entries`).
"""

M = TypeVar("M", bound=Hashable)


class Verdict(enum.Enum):
    """How to treat a received message.

    Attributes:
        TAKE: Deliver the message.
        WAIT: The message waits: an attempt at it is still running, or an earlier message of its lane waits.
            Messages of one lane, such as one consumer, are delivered in order.
        SETTLE: An earlier delivery of the message was settled or handled; this one only needs to be settled.
        DUPLICATE: The message has the id of a handled message, and only needs to be settled.
        STAY: The message can be neither delivered nor moved, and is left unsettled.
    """

    TAKE = enum.auto()
    WAIT = enum.auto()
    SETTLE = enum.auto()
    DUPLICATE = enum.auto()
    STAY = enum.auto()


class Waiting(NamedTuple, Generic[M]):
    """A waiting message.

    Attributes:
        key: The identity or id whose outcome the message waits for; `None` if it only waits behind another
            message.
        lane: Later messages of the same lane wait behind this message; `None`: no message does.
        message: The message.
    """

    key: Hashable | None
    lane: object
    message: M


class DeliveryMemory(Generic[M]):
    """Recognises redelivered messages and duplicates, as in the table above.

    A broker redelivers a settled message only over a later connection. So on the same connection, an equal
    message is taken for another message. Messages without an id are never recognised.

    If producers create the ids, two messages may have the same id. Then a message is recognised only if it
    has the redelivered flag. Without a timestamp, that isn't enough either: such a message is recognised,
    once, only if a message of the same identity was handled and could not be acknowledged.

    One object may serve several receive buffers, one after the other (`begin`). Not thread-safe.

    Args:
        remembered: Maximum number of remembered messages of each kind.

    Attributes:
        stable: Whether the broker creates the ids, so that no two messages have the same.
        has_entries: Whether any identity is remembered. If not, `classify` depends on ids and waiting
            messages only.
        link: The current connection.
        note: Records the identity of a message settled over the current connection. For speed, this is the
            `append` method of a deque.

    Source: I15, I17.
    """

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self.stable = False
        self.has_entries = False
        self._remembered = remembered
        self._recheck: Callable[[list[M]], object] | None = None
        self._buffer: object = None
        self.link: object = None
        # Identities of settled messages: `_recent` over the current connection, `_settled` over earlier ones.
        self._recent: deque[Identity | None] = deque(maxlen=remembered)
        self.note = self._recent.append
        self._settled: OrderedDict[Hashable, None] = OrderedDict()
        self._handed_out: Counter[Identity] = Counter()
        self._handed_out_before: Counter[Identity] = Counter()
        self._returned: set[int] = set()
        self._expected: OrderedDict[Hashable, None] = OrderedDict()
        self._left: OrderedDict[Hashable, None] = OrderedDict()
        self._handled: OrderedDict[Hashable, None] = OrderedDict()
        self._in_flight: set[str] = set()
        self._waiting: list[Waiting[M]] = []
        self._lanes: Counter[object] = Counter()
        self._released: set[M] = set()

    # -- connections ---------------------------------------------------------------------------------------

    def begin(
        self,
        buffer: object,
        link: object,
        recheck: Callable[[list[M]], object],
        *,
        unsettled: AbstractSet[Identity | None] = frozenset(),
        unacknowledged: AbstractSet[Identity | None] = frozenset(),
    ) -> None:
        """Prepare for the messages of a new receive buffer, perhaps of a new connection.

        Args:
            buffer: The new receive buffer.
            link: The connection of the new buffer.
            recheck: Called with messages of the new buffer that need not wait any more, in order.
            unsettled: Identities of the previous buffer's unsettled messages. Settled messages with these
                identities are forgotten, so that the redelivery of an unsettled message is delivered.
            unacknowledged: Identities of the previous buffer's messages that were handled and not
                acknowledged. Their redeliveries are only settled.
        """
        self._buffer = buffer
        self._recheck = recheck
        self.forget(unsettled)
        for key in unacknowledged:
            self.expect(key)
        if link is not self.link:
            self.link = link
            for key in self._recent:
                self.mark_settled_earlier(key)
            self._recent.clear()
        self._handed_out_before += self._handed_out
        self._handed_out.clear()
        self._returned.clear()
        self._in_flight.clear()
        self._waiting.clear()
        self._lanes.clear()
        self._released.clear()
        self.has_entries = bool(self._settled or self._expected or self._handed_out_before or self._left)

    def forget(self, keys: Collection[Identity | None]) -> None:
        """Forget settled messages that have the identities of unsettled messages.

        Otherwise an unsettled message would be taken for a settled one when it is redelivered.

        Args:
            keys: Identities of unsettled messages.
        """
        for key in keys:
            if key is not None:
                self._settled.pop(key, None)
                self._expected.pop(key, None)
        if not self._recent or not any(key in keys for key in self._recent):
            return
        kept = [key for key in self._recent if key not in keys]
        self._recent.clear()
        self._recent.extend(kept)

    # -- arrivals ------------------------------------------------------------------------------------------

    @property
    def left_unsettled(self) -> int:
        """Number of messages left unsettled, because they can be neither delivered nor moved."""
        return len(self._left)

    @property
    def has_unsettled(self) -> bool:
        """Whether messages are kept unsettled: the waiting ones and `left_unsettled`."""
        return bool(self._left or self._waiting)

    @property
    def waiting(self) -> list[M]:
        """The waiting messages, in order."""
        return [each.message for each in self._waiting]

    def classify(
        self,
        message: M,
        *,
        identity: Identity | None = None,
        published: Identity | None = None,
        redelivered: bool = False,
        message_id: str | None = None,
        lane: object = None,
    ) -> Verdict:
        """Return how to treat a message that has arrived.

        Args:
            message: The message.
            identity: The identity of the message that arrived, which may be a copy of another message.
            published: The identity of the message as it was published. It equals `identity` unless the
                message that arrived is a copy. `None` if the message can't have been received before.
            redelivered: Whether the message has the redelivered flag.
            message_id: The message id, if duplicates are dropped; else `None`.
            lane: A value that messages share if they must be delivered in order, such as their consumer.
                `None`: the message needs no order.
        """
        released = message in self._released
        self._released.discard(message)
        if self.has_entries and identity is not None and (self.stable or redelivered):
            if identity in self._left:
                return Verdict.STAY
            if self._handed_out_before[identity] > sum(identity == each.key for each in self._waiting):
                return self._wait(identity, lane, message)
        if self.is_repetition(identity, published, redelivered=redelivered):
            if identity in self._expected and not (self.stable or identity.timestamp):  # type: ignore[union-attr]  # it has an id
                del self._expected[identity]
            return Verdict.SETTLE
        if message_id is not None and message_id in self._handled:
            return Verdict.DUPLICATE
        if lane is not None and not released and self._lanes[lane]:
            return self._wait(None, lane, message)
        if message_id is not None:
            if message_id in self._in_flight:
                return self._wait(message_id, lane, message)
            self._in_flight.add(message_id)
        return Verdict.TAKE

    def is_repetition(
        self, identity: Identity | None, published: Identity | None, *, redelivered: bool
    ) -> bool:
        """Return whether a message is a redelivery of a message that was settled or handled.

        Args:
            identity: As for `classify`.
            published: As for `classify`.
            redelivered: As for `classify`.
        """
        if not self.has_entries:
            return False
        if identity is not None and (self.stable or redelivered):
            if identity in self._expected:
                return True
            if (self.stable or identity.timestamp) and identity in self._settled:
                return True
        return (
            published is not None and bool(self.stable or published.timestamp) and published in self._settled
        )

    def _wait(self, key: Hashable | None, lane: object, message: M) -> Verdict:
        self._waiting.append(Waiting(key, lane, message))
        if lane is not None:
            self._lanes[lane] += 1
        return Verdict.WAIT

    # -- outcomes ------------------------------------------------------------------------------------------

    def mark_settled_earlier(self, key: Identity | None) -> None:
        """Record that a message was settled over an earlier connection."""
        if key is not None:
            self._settled.pop(key, None)
            self._remember(self._settled, key)
            self.has_entries = True

    def hand_out(self, key: Identity | None) -> None:
        """Record that a message was delivered to a handler; `record_outcome` later records the outcome."""
        if key is not None:
            self._handed_out[key] += 1

    def record_outcome(self, number: int, key: Identity | None, buffer: object, *, handled: bool) -> None:
        """Record the outcome of a delivery to a handler.

        Args:
            number: The number of the message in its receive buffer.
            key: The identity of the message at the broker.
            buffer: The receive buffer of the message.
            handled: Whether the message was handled.
        """
        earlier = buffer is not self._buffer
        if handled and not earlier:
            self._returned.add(number)
        if key is None:
            return
        handed_out = self._handed_out_before if earlier else self._handed_out
        handed_out[key] -= 1
        if handed_out[key] <= 0:
            del handed_out[key]
        if handled and earlier:
            self.expect(key)
        elif handled:
            self.note(key)
        if earlier:
            self._release()

    def is_handled(self, number: int) -> bool:
        """Return whether a message of the current buffer was handled, and isn't known to be settled."""
        return number in self._returned

    def mark_settled(self, numbers: Iterable[int]) -> None:
        """Record that messages are settled; `is_handled` then returns `False` for them.

        Args:
            numbers: The numbers of the messages in the current receive buffer.
        """
        self._returned.difference_update(numbers)

    def mark_left_unsettled(self, key: Identity | None) -> None:
        """Record that a message and its redeliveries are left unsettled."""
        if key is not None:
            self._remember(self._left, key)
            self.has_entries = True

    def record_id_outcome(self, message_id: str | None, buffer: object, *, handled: bool) -> None:
        """Record the outcome of a message by its id, for duplicate elimination.

        Args:
            message_id: The id of the message.
            buffer: The receive buffer of the message.
            handled: Whether a handler has handled the message. Later messages with the same id are then
                dropped. A moved or deleted message isn't handled, because it may be put back into its queue.
        """
        if message_id is None:
            return
        if handled:
            self._remember(self._handled, message_id)
        if buffer is self._buffer:
            self._in_flight.discard(message_id)
            self._release()

    def expect(self, key: Hashable | None) -> None:
        """Record that the broker will redeliver a message."""
        if key is not None:
            self._remember(self._expected, key)
            self.has_entries = True

    def pop_expected(self, key: Hashable | None) -> bool:
        """Remove a message from the expected redeliveries; return whether it was one of them."""
        return self._expected.pop(key, self) is None

    def _remember(self, where: OrderedDict[Hashable, None], key: Hashable) -> None:
        where[key] = None
        if len(where) > self._remembered:
            where.popitem(last=False)

    def _release(self) -> None:
        """Pass the waiting messages that no longer have to wait to the recheck callback, in order."""
        if not self._waiting:
            return
        stays: list[Waiting[M]] = []
        goes: list[M] = []
        lanes: Counter[object] = Counter()
        for each in self._waiting:
            key, lane, message = each
            if key in self._handed_out_before or key in self._in_flight or (lane is not None and lanes[lane]):
                stays.append(each)
                if lane is not None:
                    lanes[lane] += 1
            else:
                goes.append(message)
        self._waiting, self._lanes = stays, lanes
        if goes and self._recheck is not None:
            self._released.update(goes)
            self._recheck(goes)
