"""Received messages: repetitions among them, and when the others are passed to the machine."""

from __future__ import annotations

import enum
import itertools
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Protocol, Self, TypeAlias

from airflow_provider_jmsjca.core.copies.in_progress import unstaged
from airflow_provider_jmsjca.core.copies.load_balancing import published
from airflow_provider_jmsjca.core.copies.parking import unparked
from airflow_provider_jmsjca.core.delivery.decisions import Decision, Leave
from airflow_provider_jmsjca.core.delivery.events import MessageArrived
from airflow_provider_jmsjca.core.delivery.machine import DeliveryMachine
from airflow_provider_jmsjca.core.delivery.settings import MOST_BYTES
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.failure import Failure, loggable
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.message.message import Identity, identity_of, size_of, with_id_of
from airflow_provider_jmsjca.core.options.choices import InDoubtEvents
from airflow_provider_jmsjca.engine.delivering.settings import ListenerSettings
from airflow_provider_jmsjca.engine.delivering.statistics import Counters
from airflow_provider_jmsjca.errors import JmsError, PoisonMessageError
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.transports.base import Connection, Consumer, Received

_log = safe_logger("airflow_provider_jmsjca.listener")

REMEMBERED = 32_768
"""Number of remembered handled or settled messages: the number of acknowledgements that a busy RabbitMQ queue
holds back from the disk (its `queue_index_max_journal_entries`). The adapter itself remembered one."""


_LARGE = 16 * 1024


class DuplicateIds:
    """Remembers the ids of handled and in-flight messages.

    A message with a handled id is a duplicate. A message with the id of an in-flight message waits for its
    outcome; later messages wait too if their consumer settles in order. A moved or deleted message counts as
    not handled, so that it may be put back into its queue. A message without an id is never a duplicate.
    Not thread-safe.

    Args:
        remembered: Number of remembered handled messages; the oldest are forgotten first.

    Source: I15, I17.
    """

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._remembered = remembered
        self._handled: OrderedDict[str, None] = OrderedDict()
        self._waiting: dict[str, list[Received]] = {}
        # Behind a waiting message, by its consumer, if that settles in order.
        self._behind: dict[Consumer, list[Received]] = {}
        self._buffer: object = None

    @property
    def waiting(self) -> Iterator[Received]:
        """The waiting messages."""
        return itertools.chain(*self._waiting.values(), *self._behind.values())

    def is_handled(self, message_id: str | None) -> bool:
        """Return whether a message is the duplicate of a handled one."""
        return message_id in self._handled

    def must_wait(self, buffer: object, message_id: str | None, received: Received) -> bool:
        """Return whether another message with this id is in flight; if not, record this one as in flight.

        Args:
            buffer: The receive buffer of the message. A new one starts with no message in flight.
            message_id: The message's id.
            received: The message.
        """
        if buffer is not self._buffer:
            self._buffer = buffer
            self._waiting.clear()
            self._behind.clear()
        if self._behind and (behind := self._behind.get(received.consumer)) is not None:
            behind.append(received)
            return True
        if message_id is None:
            return False
        waiting = self._waiting.get(message_id)
        if waiting is None:
            self._waiting[message_id] = []
            return False
        waiting.append(received)
        if received.consumer.settles_in_order:
            self._behind[received.consumer] = []
        return True

    def completed(self, buffer: object, message_id: str | None, *, handled: bool) -> list[Received]:
        """Record the outcome of a message; return the messages of its receive buffer that waited for it."""
        if message_id is None:
            return []
        if handled:
            self._handled[message_id] = None
            if len(self._handled) > self._remembered:
                self._handled.popitem(last=False)
        if buffer is not self._buffer:
            return []
        found: list[Received] = []
        for received in self._waiting.pop(message_id, ()):
            found += received, *self._behind.pop(received.consumer, ())
        return found


class Verdict(enum.Enum):
    """How to treat a received message.

    Attributes:
        TAKE: The message is to be delivered.
        WAIT: An attempt at it is still under way, or an earlier message of its group is waiting.
        SETTLE: The message has its outcome, and only needs to be settled.
        STAY: The message can be neither delivered nor moved, and is left unsettled.
    """

    TAKE = enum.auto()
    WAIT = enum.auto()
    SETTLE = enum.auto()
    STAY = enum.auto()


class DeliveryMemory:
    """Remembers messages across reconnects.

    | the message | on redelivery over another connection |
    |---|---|
    | was handed out and is unanswered | waits for that answer, as do later messages of its group |
    | was returned | is settled instead of delivered |
    | was raised | is delivered |
    | stays | stays |

    Only a later connection redelivers a message; on the same one, an equal id means a different message.
    Messages are compared by their `identity`. If the producer creates the ids, a redelivery must also have
    the redelivered flag. If it also lacks a sending time, it can match only messages with an acknowledgement
    that the broker can't have received, each of them once. Messages without an id are never recognised. One
    object may serve several streams, one after the other. Not thread-safe.

    Args:
        remembered: Maximum number of remembered returned messages, and of messages that stay; the oldest
            are forgotten first.
    """

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._remembered = remembered
        self._recheck: Callable[[list[Received]], None] | None = None
        self._buffer: object = None
        self._out: Counter[Identity | None] = Counter()
        self._out_before: Counter[Identity | None] = Counter()
        self._returned: OrderedDict[Identity | None, None] = OrderedDict()
        self._known: OrderedDict[Identity | None, None] = OrderedDict()
        # Returned, and their connection was lost before they were acknowledged.
        self._unsettled: OrderedDict[Identity | None, None] = OrderedDict()
        self._left: OrderedDict[Identity | None, None] = OrderedDict()
        self._line: list[tuple[Identity | None, str | None, Received]] = []
        self._released: set[Received] = set()

    @property
    def left(self) -> int:
        """Number of messages that stay."""
        return len(self._left)

    @property
    def keeps(self) -> bool:
        """Whether messages stay, or wait for an answer, and so stay unsettled."""
        return bool(self._left or self._line)

    def begin(
        self,
        buffer: object,
        unsettled: AbstractSet[Identity | None],
        recheck: Callable[[list[Received]], None],
        unacknowledged: AbstractSet[Identity | None] = frozenset(),
    ) -> None:
        """Begin another receive buffer.

        Args:
            buffer: The other receive buffer.
            unsettled: Unsettled messages of the receive buffer before: they are no repetition of anything
                that was known before that.
            unacknowledged: Messages of the buffer before that were returned, but not acknowledged.
            recheck: Called with waiting messages of this buffer that are to be checked again, in order.
        """
        self._buffer = buffer
        self._recheck = recheck
        for key in unsettled:
            self._known.pop(key, None)
            self._unsettled.pop(key, None)
            self._returned.pop(key, None)
        for key in self._returned:
            self._remember(self._unsettled if key in unacknowledged else self._known, key)
        self._returned.clear()
        self._out_before += self._out
        self._out.clear()
        self._line.clear()
        self._released.clear()

    def arrived(
        self, received: Received, message: JmsMessage | None, key: Identity | None, *, stable: bool
    ) -> Verdict:
        """Return how to treat a message.

        Args:
            received: The delivery.
            message: The readable part of the message.
            key: The identity of the message.
            stable: The message's id is the broker's, and no other message has the same.
        """
        released = received in self._released
        self._released.discard(received)
        group = _group_of(message)
        if key is not None and message is not None and (stable or message.redelivered):
            if key in self._left:
                return Verdict.STAY
            if self._out_before[key] > sum(key == other for other, *_ in self._line):
                self._line.append((key, group, received))
                return Verdict.WAIT
            if stable or key.timestamp:
                if key in self._known or key in self._unsettled:
                    return Verdict.SETTLE
            elif key in self._unsettled:
                del self._unsettled[key]
                return Verdict.SETTLE
        if group is not None and not released and any(group == other for _, other, _ in self._line):
            self._line.append((None, group, received))
            return Verdict.WAIT
        return Verdict.TAKE

    def hand_out(self, key: Identity | None) -> None:
        """Record that a message was handed out and an answer is expected."""
        if key is not None:
            self._out[key] += 1

    def answer(self, key: Identity | None, buffer: object, *, handled: bool) -> None:
        """Note that the handler has answered for a message.

        Args:
            key: The identity of the message.
            buffer: The receive buffer that the message came with.
            handled: The message was handled.
        """
        if key is None:
            return
        earlier = buffer is not self._buffer
        out = self._out_before if earlier else self._out
        out[key] -= 1
        if out[key] <= 0:
            del out[key]
        if handled:
            self._remember(self._unsettled if earlier else self._returned, key)
        if earlier and (found := self._leave_line()) and self._recheck is not None:
            self._recheck(found)

    def leave(self, key: Identity | None) -> None:
        """Note that a message stays, and its repetitions too."""
        if key is not None:
            self._remember(self._left, key)

    def _remember(self, where: OrderedDict[Identity | None, None], key: Identity | None) -> None:
        where[key] = None
        if len(where) > self._remembered:
            where.popitem(last=False)

    def _leave_line(self) -> list[Received]:
        stays: list[tuple[Identity | None, str | None, Received]] = []
        goes: list[Received] = []
        groups: set[str] = set()
        for item in self._line:
            key, group, received = item
            if key in self._out_before or group in groups:
                stays.append(item)
                if group is not None:
                    groups.add(group)
            else:
                goes.append(received)
        self._line = stays
        self._released.update(goes)
        return goes


def _group_of(message: JmsMessage | None) -> str | None:
    group = None if message is None else message.properties.get("JMSXGroupID")
    return None if group is None or group == "" else str(group)


class SettledMessages:
    """Settled messages by their `identity`, and messages that came again although they were settled.

    Where the broker makes the ids, a message is recognised without the redelivered flag too: a broker that
    was killed may send a message again without it. Ids of producers, and of messages published elsewhere,
    count only with that flag. A producer's id without a sending time proves
    nothing: equal messages may have been sent on purpose.

    Noting, connecting and asking are serialised by the caller; settling is not.

    Args:
        sources: Number of destinations. Copies of a message in several queues may have the same id, and each
            of them is settled by itself.

    Attributes:
        stable: Whether the broker makes the ids.
    """

    def __init__(self, sources: int = 1) -> None:
        self._sources = sources
        self._ids: deque[Identity | None] | None = None  # an empty one counts where a thousand are idle
        self._settled_before: frozenset[Identity | None] = frozenset()
        self._repeated: list[Received] = []
        self._settling = threading.Lock()
        self._said = False
        self.stable = False

    @property
    def has_repeated(self) -> bool:
        """Whether there are messages to settle once more."""
        return bool(self._repeated)

    @property
    def settled_before(self) -> frozenset[Identity | None]:
        """Messages settled over earlier connections."""
        return self._settled_before

    def note(self, received: Received, message: JmsMessage | None, destination: Destination) -> None:
        """Note that a message was settled.

        Args:
            received: The delivery.
            message: The message as the handler gets it, with the id it was published with.
            destination: The source that it came from.
        """
        ids = self._ids
        if ids is None:
            ids = self._ids = deque(maxlen=REMEMBERED)
        if self.stable:
            here = received.readable
            one = self._sources == 1
            ids.append(identity_of(here, None if one else received.consumer.subscription.destination))
            if message is here:
                return
        key = self.key(destination, message)
        if key is not None and (self.stable or key.timestamp):
            ids.append(key)

    def key(self, destination: Destination, message: JmsMessage | None) -> Identity | None:
        """Return the identity of a published message; `None` if it has none."""
        return identity_of(message, None if self._sources == 1 else destination)

    def identity(self, received: Received) -> Identity | None:
        """Return the identity of a message at the broker; `None` if it has none."""
        return self.key(received.consumer.subscription.destination, received.readable)

    def connected(self, *, stable: bool) -> None:
        """Begin to recognise messages that were settled over earlier connections.

        Args:
            stable: Whether the broker makes the ids.
        """
        self.stable = stable
        self._said = False
        self._settled_before = frozenset(self._ids or ()) - {None}

    def forget(self, keys: AbstractSet[Identity | None]) -> None:
        """Forget unsettled messages that have the id of a settled one."""
        if self._ids is not None and not keys.isdisjoint(self._ids):
            self._ids = deque((each for each in self._ids if each not in keys), maxlen=REMEMBERED)
        self._settled_before -= keys

    def is_repeated(self, event: MessageArrived, received: Received, key: Identity | None) -> bool:
        """Return whether a message is a redelivery of a settled one."""
        if not self._settled_before:
            return False
        if self.comes_again(received):
            return True
        counts = event.parked is None or event.in_progress
        return event.redelivered and counts and key in self._settled_before

    def comes_again(self, received: Received) -> bool:
        """Return whether the broker creates the ids and has delivered this same message before."""
        return self.stable and bool(self._settled_before) and self.identity(received) in self._settled_before

    def keep(self, received: Received) -> None:
        """Keep a message to settle it once more."""
        self._repeated.append(received)

    def settle_again(self, name: str) -> None:
        """Settle duplicates, and messages that were settled before the connection was lost.

        All messages kept so far are settled when this returns, by whichever thread.
        """
        with self._settling:
            while self._repeated:
                self._settle_once_more(self._repeated.pop(0), name)

    def _settle_once_more(self, received: Received, name: str) -> None:
        if not self._said:
            self._said = True
            message = received.readable
            _log.info(
                "%s: %s came again although it was settled, as others may: they are settled once more, "
                "without a call",
                name,
                None if message is None else message.message_id,
            )
        try:
            received.consumer.acknowledge((received,))
        except JmsError as error:
            _log.debug("%s: it comes once more: %s", name, error)


class ConsumerConnection(Protocol):
    """A connection that messages come over, as its user sees it.

    Attributes:
        fault: Why it could not be used.
        is_lost: Whether the connection is gone.
        is_blocked: Whether it was given up because the broker did not answer in time.
    """

    fault: JmsError | None
    is_lost: bool
    is_blocked: bool

    def mark_lost(self) -> None:
        """Count as lost: further reports of the connection are ignored."""

    @property
    def connection(self) -> Connection:
        """The connection, once it is up."""

    def start(self) -> None:
        """Connect; `ConnectionOpened` or `ConnectFailed` is reported."""

    def consume(self, buffer: ReceiveBuffer) -> None:
        """Open the consumers, which fill the receive buffer."""

    def stop_consuming(self) -> None:
        """Close the consumers: unsettled messages return to the broker."""

    def close(self) -> None:
        """Close the connection, or give up connecting."""


class ReceiveBuffer:
    """Messages received since the consumers were opened; stale once these are closed or lost.

    Attributes:
        link: The connection it came over.
        open: Whether it can still be settled.
        ready: Whether every destination has had its chance to give something.
        noticed: Whether a check of the arrivals is due.
        arrivals: Received messages that aren't taken yet, in order.
        origins: The destinations of messages from the in-progress queue, by delivery number.
        consumers: Numbers of the consumers that settle in order, for the machine; filled on demand.
        held: Received and known to the machine, by delivery number; the message is `None` if nothing of it
            can be decoded.
        bytes: How much of memory the large ones of those take; the number of messages bounds the others.
    """

    __slots__ = (
        "__weakref__",
        "_large",
        "arrivals",
        "bytes",
        "consumers",
        "held",
        "link",
        "noticed",
        "open",
        "origins",
        "ready",
    )

    def __init__(self, link: ConsumerConnection) -> None:
        self.link = link
        self.open = True
        self.ready = False
        self.noticed = False
        self.arrivals: deque[Received] = deque()
        self.held: dict[int, tuple[Received, JmsMessage | None]] = {}
        self.origins: dict[int, Destination] = {}
        self.consumers: dict[Consumer, int] = {}
        self.bytes = 0
        self._large: dict[int, int] = {}

    def hold(self, number: int, received: Received, message: JmsMessage | None) -> int:
        """Hold a message that is passed to the machine, and count its memory.

        Returns:
            Bytes of memory of a large message; 0 for any other.
        """
        self.held[number] = received, message
        if message is None or (size := size_of(message)) < _LARGE:
            return 0
        self._large[number] = size
        self.bytes += size
        return size

    def release(self, number: int) -> tuple[Received, JmsMessage | None]:
        """Return a message and stop holding it."""
        if self._large:
            self.stop_counting(number)
        self.origins.pop(number, None)
        return self.held.pop(number)

    def stop_counting(self, number: int) -> None:
        """Stop counting a message that stays until the connection ends, so that others can continue."""
        self.bytes -= self._large.pop(number, 0)

    @classmethod
    def shut(cls, link: ConsumerConnection) -> Self:
        """Return one that is closed, for when nothing is consumed."""
        buffer = cls(link)
        buffer.expire()
        return buffer

    def expire(self) -> None:
        """Have nothing of the receive buffer settled any more: the broker has its messages back."""
        self.open = False

    def origin(self, number: int) -> Destination:
        """Return the destination that a message was sent to, as the activation names it."""
        return self.origins.get(number) or self.held[number][0].consumer.subscription.destination


Work: TypeAlias = tuple[ReceiveBuffer, Decision]
"""A decision to carry out, and the receive buffer of its messages."""


class DeliveryReader:
    """Reads the messages of a listener.

    The properties that mark a copy apply only where such copies are made: with `park` on, behind load
    balancing, in the in-progress queue. Elsewhere any sender could set them, and mark the id of a future
    message as handled; there they are ordinary properties.

    Args:
        settings: Settings of the listener.

    Attributes:
        takes_left: Whether messages that an earlier run left in progress are delivered again (I11).
    """

    def __init__(self, settings: ListenerSettings) -> None:
        self._subscribes = settings.subscribes
        self._sources = {each: number for number, each in enumerate(settings.delivery.sources)}
        self._names = {str(each): each for each in settings.delivery.sources}
        self._first = settings.delivery.destination
        self._in_progress = settings.in_progress
        self._returns = None if settings.returns is None else settings.returns.destination
        self._parks = settings.delivery.park
        self._missing_id = None if settings.spec is None else settings.spec.missing_message_id
        # A message received under another destination than the activation's is parked with its origin.
        self._balanced = settings.balanced or settings.delivery.park
        self.takes_left = (
            settings.in_progress is not None and settings.in_progress.events is InDoubtEvents.REPROCESS
        )

    def read(
        self, received: Received, number: int, *, ask: bool = True, consumer: int | None = None
    ) -> tuple[MessageArrived, JmsMessage | None, Destination | None]:
        """Return the event for the machine, and the message as the handler gets it.

        Args:
            received: From the transport.
            number: Names it to the machine.
            ask: Whether to find out if it is wanted.
            consumer: As in `MessageArrived`; never of a message in progress.

        Returns:
            The message is the salvaged one if it can't be decoded, or `None`. The destination is the
            one it was first received from, if it is in progress or was parked elsewhere.
        """
        if self._in_progress is None:
            if (
                received.consumer.subscription.destination == self._returns
            ):  # it was asked before it was parked
                event, message = self._read(received, number, 0, ask=False)
                return event, message, self._first
            source = 0
            if len(self._sources) > 1:
                source = self._sources[received.consumer.subscription.destination]
            event, message = self._read(received, number, source, ask=ask, consumer=consumer)
            return event, message, None
        destination = received.consumer.subscription.destination
        if destination != self._in_progress.destination:
            event, message = self._read(received, number, self._sources[destination], ask=ask)
            return event, message, None
        # It was asked before it came here.
        event, message = self._read(received, number, 0, ask=False, staged=True)
        if message is None:
            return replace(event, in_progress=True), None, self._first
        message, staged = unstaged(message)
        origin = self._names.get(staged.source, self._first)
        left = staged.run != self._in_progress.run
        event = replace(event, source=self._sources[origin], in_progress=True, left=left)
        return event, message, origin

    def plain(self, received: Received) -> JmsMessage | None:
        """Return a message if the machine needs only its id and group; `None` for any other.

        Used with one destination, no in-progress queue and no `subscribes` function.
        """
        try:
            message = received.message
            if is_redelivery(message):
                return None
            if message.properties and self._balanced:
                found, parked = self._own(message)
                if found is not message or parked is not None:
                    return None
            if self._missing_id is not None:
                message = with_id_of(message, self._missing_id)
        except Exception:  # noqa: BLE001 - `read` is called next, and reports the fault
            return None
        return message

    def _own(self, message: JmsMessage, *, staged: bool = False) -> tuple[JmsMessage, int | None]:
        """Return a message as it was before it was copied here, and the count it was parked with."""
        if self._balanced:
            message = published(message)
        return unparked(message) if self._parks or staged else (message, None)

    def _read(
        self,
        received: Received,
        number: int,
        source: int,
        *,
        ask: bool = True,
        staged: bool = False,
        consumer: int | None = None,
    ) -> tuple[MessageArrived, JmsMessage | None]:
        message: JmsMessage | None = None
        try:
            message, parked = received.message, None
            if message.properties:
                message, parked = self._own(message, staged=staged)
            if self._missing_id is not None:
                message = with_id_of(message, self._missing_id)
            subscribes = self._subscribes if ask else None
            unsubscribed = subscribes is not None and not subscribes(message)
        except PoisonMessageError as error:
            return _poison(message or received.salvaged, number, source, error, consumer)
        except BaseException as error:
            if message is None:
                raise
            _log.error(
                "A message could not be asked whether it is wanted: it is poison", exc_info=loggable(error)
            )
            return _poison(message, number, source, error, consumer)
        group = message.properties.get("JMSXGroupID")
        event = MessageArrived(
            delivery=number,
            message_id=message.message_id,
            source=source,
            consumer=consumer,
            group=None if group is None else str(group),
            redelivered=is_redelivery(message),
            parked=parked,
            unsubscribed=unsubscribed,
        )
        return event, message


def is_redelivery(message: JmsMessage) -> bool:
    """Return whether the broker has delivered a message before, by its flag or its count."""
    return message.redelivered or (message.delivery_count or 1) > 1


def _poison(
    message: JmsMessage | None, number: int, source: int, error: BaseException, consumer: int | None
) -> tuple[MessageArrived, JmsMessage | None]:
    event = MessageArrived(
        delivery=number,
        message_id=None if message is None else message.message_id,
        source=source,
        consumer=consumer,
        undecodable=Failure.of(error),
    )
    return event, message


class ReceiveListener(Protocol):
    """Takes arrived messages from a receive buffer."""

    def arrived(self, buffer: ReceiveBuffer) -> None:
        """Have a message of the receive buffer taken in."""


class Receiver:
    """Passes received messages to the machine.

    Call everything here under the dispatcher's lock. At most `MOST_BYTES` of large messages plus one message
    are in flight, and more only if `wanted` allows it. Further messages wait in the transport.

    Args:
        settings: How to consume.
        machine: Reports the number of in-flight messages.
        counters: Counts repeated messages.
        workers: Called when messages that had to wait may be taken.
        buffer: The first, closed buffer.
        takes_all: Pass messages to the machine as they arrive, because it chooses among them or enforces the
            limit itself.
        limit: Take at most this many messages; `None`: no limit.
        wanted: Returns whether to take another message regardless of the memory limit.
        post: Posts the work of leaving an unreadable message; `None`: no such work is needed.

    Attributes:
        buffer: Messages of the current consumers.
        numbers: Numbers for messages passed to the machine.
        settled: Recently settled messages, which aren't passed on again.
        duplicates: Recognises duplicates, where they are dropped; `None` where they aren't.
    """

    def __init__(
        self,
        settings: ListenerSettings,
        machine: DeliveryMachine,
        counters: Counters,
        workers: ReceiveListener,
        buffer: ReceiveBuffer,
        *,
        takes_all: bool,
        limit: int | None = None,
        wanted: Callable[[], bool] = lambda: False,
        post: Callable[[Work], None] | None = None,
    ) -> None:
        self._name = settings.name
        self._machine = machine
        self._counters = counters
        self._workers = workers
        self._reader = DeliveryReader(settings)
        self.buffer = buffer
        # The earlier connection, and the messages still expected from it if the broker blocked it.
        self._earlier_link = buffer.link
        self._earlier_keys: set[Identity | None] = set()
        self.takes_all = takes_all
        self._limit = limit
        self._wanted = wanted
        self._post = post
        self._held_up = False
        self._batches = settings.delivery.batch_size > 1
        self.numbers = itertools.count(1)
        self._sources = settings.delivery.sources
        self.settled = SettledMessages(len(self._sources))
        self._settled_before = self.settled.settled_before
        self.duplicates = DuplicateIds() if settings.drop_duplicates else None

    def restart_with(self, buffer: ReceiveBuffer) -> None:
        """Switch to the receive buffer of new consumers; unsettled messages return to the broker."""
        old, self.buffer = self.buffer, buffer
        settled = self.settled
        back = {settled.key(old.origin(number), message) for number, (_, message) in old.held.items()}
        waiting = () if self.duplicates is None else self.duplicates.waiting
        for received in (*waiting, *old.arrivals):
            try:
                back |= self._returned_to_broker(received)
            except Exception as error:  # noqa: BLE001 - an edge: a message that can't be read is of no use
                _log.warning("%s: a message that went back can't be read: %s", self._name, loggable(error))
        old.arrivals.clear()  # a busy thread may still refer to the buffer
        settled.forget(back)
        self._settled_before = settled.settled_before
        if self._earlier_link is old.link or not self.blocked:
            self._earlier_link, self._earlier_keys = old.link, back
        elif old.link.is_blocked:
            self._earlier_keys |= back

    @property
    def blocked(self) -> bool:
        """Whether the broker may hold messages for an earlier connection, on which it did not answer.

        The broker returns all messages of a connection together: the first redelivered one ends this state.
        """
        return self._earlier_link.is_blocked

    def _returned_to_broker(self, received: Received) -> set[Identity | None]:
        """Tell the machine of a message that the broker had back before it was taken in.

        Returns:
            The message's identity, unless it was settled before.
        """
        event, message, origin = self._reader.read(received, 0, ask=False)
        key = self.settled.key(origin or self._sources[event.source], message)
        if event.redelivered and key in self._settled_before:
            return set()
        self._machine.returned_to_broker(event)
        return {key}

    def may_take(self, buffer: ReceiveBuffer) -> bool:
        """Return whether a message has arrived that may be taken."""
        if buffer is not self.buffer or not buffer.open or not buffer.arrivals:
            return False
        if self.takes_all:
            if not buffer.ready:
                return False
        elif self._limit is not None and self._counters.settled + self._machine.in_flight >= self._limit:
            return False
        if buffer.bytes < MOST_BYTES:
            return True
        self._held_up = not self._wanted()
        return not self._held_up

    def go_on(self) -> None:
        """Take messages that were held up, if memory has room for one more."""
        if self._held_up and (self.buffer.bytes < MOST_BYTES or self._wanted()):
            self._held_up = False
            self._workers.arrived(self.buffer)

    def take_all(self) -> list[MessageArrived]:
        """Take arrived messages up to the memory limit, so that the machine can choose among them."""
        buffer, taken = self.buffer, []
        while self.may_take(buffer):
            if (event := self.take()) is not None:
                taken.append(event)
            if buffer.bytes >= MOST_BYTES:  # whether another is wanted is known when the machine has this one
                self._held_up = True
                break
        return taken

    def take(self) -> MessageArrived | None:
        """Take the first message; return `None` if it isn't for the machine.

        A message that can't be read now, for example for lack of memory, stays unsettled. It is redelivered
        over the next connection, and later messages continue.
        """
        received = self.buffer.arrivals.popleft()
        number = next(self.numbers)
        try:
            return self._take(received, number)
        except Exception as error:  # noqa: BLE001 - an edge: nobody else's trouble
            self._cannot_read(received, number, error)
            return None

    def _cannot_read(self, received: Received, number: int, error: Exception) -> None:
        _log.error(
            "%s: a message can't be read now, and stays unsettled: %s: %s",
            self._name,
            type(error).__name__,
            loggable(error),
        )
        if self._post is not None and not received.is_stale:
            self.buffer.hold(number, received, None)
            self._post((self.buffer, Leave(delivery=number)))

    def _take(self, received: Received, number: int) -> MessageArrived | None:
        buffer = self.buffer
        if received.is_stale:
            self.settled.forget(self._returned_to_broker(received))
            self._settled_before = self.settled.settled_before
            return None
        consumer = self._number_of(received.consumer) if self._batches else None
        event, message, origin = self._reader.read(received, number, consumer=consumer)
        if event.left and not self._reader.takes_left:
            _log.error("%s: message %s was left in progress: it stays", self._name, event.message_id)
            return None
        duplicates = None if event.left else self.duplicates
        settled = self.settled
        key = settled.key(self._sources[event.source], message)
        repeated = settled.is_repeated(event, received, key)
        if repeated or (key in self._earlier_keys and (key is not None or event.redelivered)):
            self._earlier_link = buffer.link
        if repeated or (duplicates and duplicates.is_handled(event.message_id)):
            self._counters.repeat()
            settled.keep(received)
            if event.in_progress:
                self._machine.duplicate_dropped(event.message_id)
            return None
        if duplicates is not None and duplicates.must_wait(buffer, event.message_id, received):
            return None
        size = buffer.hold(event.delivery, received, message)
        if origin is not None:
            buffer.origins[event.delivery] = origin
        return replace(event, size=size) if size else event

    def _number_of(self, consumer: Consumer) -> int | None:
        """Return the machine's number of a consumer that settles in order; `None` for any other."""
        if not consumer.settles_in_order:
            return None
        numbers = self.buffer.consumers
        number = numbers.get(consumer)
        if number is None:
            number = numbers[consumer] = next(self.numbers)
        return number

    def completed(self, buffer: ReceiveBuffer, message_id: str | None, *, handled: bool) -> None:
        """Look again at the messages that waited for one of their own id."""
        if self.duplicates is not None:
            for received in reversed(self.duplicates.completed(buffer, message_id, handled=handled)):
                buffer.arrivals.appendleft(received)
                self._workers.arrived(buffer)

    def admit_more(self) -> None:
        """A message went without being settled: the limit, or memory, has room again."""
        if self.buffer.arrivals:
            self._workers.arrived(self.buffer)
