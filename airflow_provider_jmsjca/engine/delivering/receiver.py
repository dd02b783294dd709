"""Receives messages, and passes them to the delivery machine.

A message that the broker redelivers although it was settled is only settled once more.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable
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
from airflow_provider_jmsjca.core.message.delivery_memory import DeliveryMemory, Verdict
from airflow_provider_jmsjca.core.message.message import Identity, identity_of, size_of, with_stable_id
from airflow_provider_jmsjca.core.options.choices import InDoubtEvents
from airflow_provider_jmsjca.engine.delivering.settings import ListenerSettings
from airflow_provider_jmsjca.engine.delivering.statistics import Counters
from airflow_provider_jmsjca.errors import JmsError, PoisonMessageError
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.transports.base import Connection, Consumer, Received

_log = safe_logger("airflow_provider_jmsjca.listener")

_LARGE = 16 * 1024


class RepeatedMessages:
    """Messages that were redelivered although they were settled; each is settled once more.

    Args:
        name: The listener's name, for the log.

    Attributes:
        waiting: Messages that are still to be settled once more.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._settling = threading.Lock()
        self._said = False
        self.waiting: list[Received] = []

    def connected(self) -> None:
        """Note that there is a new connection, so that the first repetition over it is logged."""
        self._said = False

    def settle(self) -> None:
        """Settle all waiting messages.

        They are settled when this returns, by this thread or another one.
        """
        with self._settling:
            while self.waiting:
                self._settle_once_more(self.waiting.pop(0))

    def _settle_once_more(self, received: Received) -> None:
        if not self._said:
            self._said = True
            message = received.readable
            _log.info(
                "%s: message %s was redelivered although it is settled; it is acknowledged again, without a "
                "call of the handler. Further ones are not logged",
                self._name,
                None if message is None else message.message_id,
            )
        try:
            received.consumer.acknowledge((received,))
        except JmsError as error:
            _log.debug("%s: acknowledging it again failed; it will be redelivered: %s", self._name, error)


class ConsumerConnection(Protocol):
    """The interface of a connection over which messages are received.

    Attributes:
        fault: Why the connection could not be used; `None` if it could.
        is_lost: Whether the connection is lost.
        is_blocked: Whether the connection was given up because the broker did not answer in time.
    """

    fault: JmsError | None
    is_lost: bool
    is_blocked: bool

    def mark_lost(self) -> None:
        """Mark the connection as lost, so that its further reports are ignored."""

    @property
    def connection(self) -> Connection:
        """The connection, once it is up."""

    def start(self) -> None:
        """Begin to connect; the driver later gets `ConnectionOpened` or `ConnectFailed`."""

    def consume(self, buffer: ReceiveBuffer) -> None:
        """Open the consumers, which fill the receive buffer."""

    def stop_consuming(self) -> None:
        """Close the consumers: unsettled messages return to the broker."""

    def close(self) -> None:
        """Close the connection, or give up connecting."""


class ReceiveBuffer:
    """Messages received since the consumers were opened; stale once the consumers are closed or lost.

    Attributes:
        link: The connection over which the messages were received.
        open: Whether the messages can still be settled.
        ready: Whether the broker has confirmed the consumers.
        noticed: Whether a thread or the event loop has been asked to take the arrivals, and hasn't begun yet.
        arrivals: Received messages that aren't taken yet, in order.
        origins: By delivery number, the source of each message that came through the in-progress queue, or
            the queue through which delayed messages return.
        consumers: The machine's numbers of consumers that settle in order, by consumer. A consumer gets its
            number with its first message.
        held: Messages passed to the machine, by delivery number; the message is `None` if nothing of it can
            be decoded.
        bytes: Memory that large messages in `held` take, in bytes; small ones are bounded by their number.
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
        """Stop counting the memory of a message that stays unsettled, so that other messages can be taken."""
        self.bytes -= self._large.pop(number, 0)

    @classmethod
    def shut(cls, link: ConsumerConnection) -> Self:
        """Return a closed receive buffer, for times when nothing is consumed."""
        buffer = cls(link)
        buffer.expire()
        return buffer

    def expire(self) -> None:
        """Mark the messages as returned to the broker: none of them can be settled any more."""
        self.open = False

    def origin(self, number: int) -> Destination:
        """Return the source of a message, as the activation names it, even if it came by another queue."""
        return self.origins.get(number) or self.held[number][0].consumer.subscription.destination


Work: TypeAlias = tuple[ReceiveBuffer, Decision]
"""A decision to carry out, and the receive buffer of its messages."""


class DeliveryReader:
    """Reads the messages of a listener.

    Properties that mark a copy apply only where such copies are made: with `non_blocking_redelivery` on,
    behind load balancing, in the in-progress queue. Elsewhere they are ordinary properties. Otherwise any
    sender could set them and so mark the id of a future message as handled.

    Args:
        settings: Settings of the listener.

    Attributes:
        takes_left: Whether messages that an earlier run left in the in-progress queue are delivered again.
    """

    def __init__(self, settings: ListenerSettings) -> None:
        self._subscribes = settings.subscribes
        self._sources = {each: number for number, each in enumerate(settings.delivery.sources)}
        self._names = {str(each): each for each in settings.delivery.sources}
        self._first = settings.delivery.destination
        self._in_progress = settings.in_progress
        self._returns = None if settings.returns is None else settings.returns.destination
        self._parks = settings.delivery.non_blocking_redelivery
        self._missing_id = None if settings.spec is None else settings.spec.message_id_fallback
        # A message received under another destination than the activation's is parked with its origin.
        self._balanced = settings.balanced or settings.delivery.non_blocking_redelivery
        self.takes_left = (
            settings.in_progress is not None and settings.in_progress.events is InDoubtEvents.REPROCESS
        )

    def read(
        self, received: Received, number: int, *, ask: bool = True, consumer: int | None = None
    ) -> tuple[MessageArrived, JmsMessage | None, Destination | None]:
        """Return the event for the machine, and the message as the handler gets it.

        Args:
            received: The message from the transport.
            number: Delivery number of the message in the machine.
            ask: Whether to call the `subscribes` function of the listener.
            consumer: Number of the consumer, for `MessageArrived.consumer`; ignored for a message from the
                in-progress queue.

        Returns:
            The event, the message and a destination. An undecodable message is replaced by its salvaged form,
            or by `None`. The destination is the original source of a message that came through the
            in-progress queue, or through the queue of delayed messages; otherwise `None`.
        """
        if self._in_progress is None:
            if self._returns is not None and received.consumer.subscription.destination == self._returns:
                # It was asked before it was parked.
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

        The result takes neither the in-progress queue nor the `subscribes` function into account.
        """
        if received.generation != received.consumer.generation:  # `Received.is_stale`, without a call
            return None
        try:
            message = received.message
            if (message.redelivered or message.delivery_count) and is_redelivery(message):
                return None
            if message.properties and self._balanced:
                found, parked = self._own(message)
                if found is not message or parked is not None:
                    return None
            if self._missing_id is not None:
                message = with_stable_id(message, self._missing_id)
        except Exception:  # noqa: BLE001 - `read` is called next, and reports the fault
            return None
        return message

    def _own(self, message: JmsMessage, *, staged: bool = False) -> tuple[JmsMessage, int | None]:
        """Return the original of a copied message, and the delivery count that a delayed copy carries.

        The count is `None` if the message is not a copy that was sent for later delivery.
        """
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
            if message.properties and (staged or self._balanced):
                message, parked = self._own(message, staged=staged)
            if self._missing_id is not None:
                message = with_stable_id(message, self._missing_id)
            subscribes = self._subscribes if ask else None
            unsubscribed = subscribes is not None and not subscribes(message)
        except PoisonMessageError as error:
            return _poison(message or received.salvaged, number, source, error, consumer)
        except BaseException as error:
            if message is None:
                raise
            _log.error(
                "subscribes() raised an exception for a message, which is treated like an undecodable one",
                exc_info=loggable(error),
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


class Receiver:
    """Passes received messages to the delivery machine.

    Call every method under the driver's lock. At most `MOST_BYTES` of large messages plus one message are
    in flight, and more only if `wanted` allows it. Further messages wait in the transport.

    Args:
        settings: Settings of the listener.
        machine: Reports the number of in-flight messages.
        counters: Counts repeated messages.
        arrived: Called when messages that had to wait may be taken.
        buffer: A closed receive buffer, used until the first consumers are opened.
        takes_all: Pass messages to the machine as they arrive, because it chooses among them or enforces the
            limit itself.
        limit: Take at most this many messages; `None`: no limit.
        wanted: Returns whether to take another message even if the memory limit is reached.
        post: Posts a `Leave` decision for a message that can't be read now; `None`: such a message needs no
            further work.
        memory: Delivery memory of an earlier run; `None`: a new one.

    Attributes:
        buffer: Messages of the current consumers.
        reader: Reads the messages.
        numbers: Numbers for messages passed to the machine.
        memory: Recognises redelivered messages.
        repeated: Redelivered messages that are to be settled once more.
        held_up: Whether messages wait until memory is free.
        blocked: Whether the broker may hold messages for an earlier connection, on which it did not answer.
            The broker returns all messages of a connection together: the first redelivered one ends this
            state.
    """

    def __init__(
        self,
        settings: ListenerSettings,
        machine: DeliveryMachine,
        counters: Counters,
        arrived: Callable[[ReceiveBuffer], object],
        buffer: ReceiveBuffer,
        *,
        takes_all: bool,
        limit: int | None = None,
        wanted: Callable[[], bool] = lambda: False,
        post: Callable[[Work], None] | None = None,
        memory: DeliveryMemory[Received] | None = None,
    ) -> None:
        self._name = settings.name
        self._machine = machine
        self._counters = counters
        self._arrived = arrived
        self.reader = DeliveryReader(settings)
        self.buffer = buffer
        # The earlier connection, and the messages still expected from it if the broker blocked it.
        self.blocked = False
        self._earlier_link = buffer.link
        self._earlier_keys: set[Identity | None] = set()
        self.takes_all = takes_all
        self._limit = limit
        self._wanted = wanted
        self._post = post
        self.held_up = False
        self._batches = settings.delivery.batch_size > 1
        self.numbers = itertools.count(1)
        self._sources = settings.delivery.sources
        # Copies of a message in several queues may have the same id, and each of them is settled by itself.
        self._several = len(self._sources) > 1
        self._drops_duplicates = settings.drop_duplicates
        self.memory: DeliveryMemory[Received] = DeliveryMemory() if memory is None else memory
        self.repeated = RepeatedMessages(settings.name)

    def restart_with(self, buffer: ReceiveBuffer) -> None:
        """Switch to the receive buffer of new consumers; unsettled messages return to the broker."""
        old, self.buffer = self.buffer, buffer
        memory = self.memory
        back: set[Identity | None] = set()
        unacknowledged: set[Identity | None] = set()
        keys: set[Identity | None] = set()  # as published
        for number, (received, message) in old.held.items():
            identities = self._identities(received, message, old.origin(number))
            (unacknowledged if memory.is_handled(number) else back).update(identities)
            keys.add(identities[1])
        # The consumers of a stream may not be closed yet, and append.
        for received in (*memory.waiting, *tuple(old.arrivals)):
            try:
                if (found := self._returned_to_broker(received)) is not None:
                    back.update(found)
                    keys.add(found[1])
            except Exception as error:  # noqa: BLE001 - an edge: a message that can't be read is of no use
                _log.warning(
                    "%s: can't read the id of a message that was returned to the broker: %s",
                    self._name,
                    loggable(error),
                )
        old.arrivals.clear()  # a busy thread may still refer to the buffer
        memory.begin(buffer, buffer.link, self._take_again, unsettled=back, unacknowledged=unacknowledged)
        if buffer.open:
            memory.stable = buffer.link.connection.capabilities.stable_message_id
        if buffer.link is not old.link:
            self.repeated.connected()
        if self._earlier_link is old.link or not self.blocked:
            self._earlier_link, self._earlier_keys = old.link, keys
            self.blocked = old.link.is_blocked
        elif old.link.is_blocked:
            self._earlier_keys |= keys

    def _take_again(self, found: list[Received]) -> None:
        """Put messages that had to wait in front of later arrivals, and check them again."""
        self.buffer.arrivals.extendleft(reversed(found))
        self._arrived(self.buffer)

    def _identities(
        self, received: Received, message: JmsMessage | None, origin: Destination
    ) -> tuple[Identity | None, Identity | None]:
        """Return a message's identity at the broker, and the identity with which it was published."""
        if message is None:
            return None, None
        here = received.readable
        at_broker = self.identity(received)
        if message is here:
            return at_broker, at_broker
        return at_broker, identity_of(message, origin if self._several else None)

    def identity(self, received: Received) -> Identity | None:
        """Return the identity of a message at the broker; `None` if it has none."""
        destination = received.consumer.subscription.destination if self._several else None
        return identity_of(received.readable, destination)

    def let_go(
        self, buffer: ReceiveBuffer, number: int, *, settled: bool = True, handled: bool = True
    ) -> None:
        """Release a message, and check messages with the same id that had to wait for it.

        Args:
            buffer: The receive buffer of the message.
            number: Delivery number of the message.
            settled: Whether to remember the message as settled. `False`: a copy was sent for later delivery,
                or to the in-progress queue. The copy will arrive, and must not be taken for a repetition.
            handled: Whether a handler has completed the message.
        """
        origin = buffer.origin(number) if self._several else None
        received, message = buffer.release(number)
        if message is None:
            return
        if settled:
            self.note_settled(buffer, received, message, origin)
        if self._drops_duplicates:
            self.memory.record_id_outcome(message.message_id, buffer, handled=handled)

    def note_settled(
        self, buffer: ReceiveBuffer, received: Received, message: JmsMessage, origin: Destination | None
    ) -> None:
        """Remember a settled message by its identity at the broker and by its identity as published.

        Args:
            buffer: The receive buffer of the message.
            received: The message from the transport.
            message: The message as the handler got it.
            origin: The destination that it was sent to; `None` for a listener with a single destination.
        """
        memory = self.memory
        note = memory.note if buffer.link is memory.link else memory.mark_settled_earlier
        if memory.stable:
            here = message if message is received.decoded else received.readable
            note(identity_of(here, None if origin is None else received.consumer.subscription.destination))
            if message is here:
                return
        key = identity_of(message, origin)
        if key is not None and (memory.stable or key.timestamp):
            note(key)

    def _returned_to_broker(self, received: Received) -> tuple[Identity | None, Identity | None] | None:
        """Tell the machine about a message that returned to the broker before it was taken.

        Returns:
            The message's identities; `None` if it was settled before.
        """
        event, message, _ = self.reader.read(received, 0, ask=False)
        here, as_published = self._identities(received, message, self._sources[event.source])
        flagged = _is_flagged(received)
        known = as_published if flagged or (event.redelivered and self.memory.stable) else None
        if self.memory.is_repetition(here, known, redelivered=flagged):
            return None
        self._machine.returned_to_broker(event)
        return here, as_published

    def may_take(self, buffer: ReceiveBuffer, beside: int = 0) -> bool:
        """Return whether a message has arrived that may be taken.

        Args:
            buffer: The receive buffer of the message.
            beside: Number of messages taken and not passed to the machine yet.
        """
        if buffer is not self.buffer or not buffer.open or not buffer.arrivals:
            return False
        if self.takes_all and not buffer.ready:
            return False
        limit = self._limit
        if limit is not None and self._counters.settled + self._machine.in_flight + beside >= limit:
            return False
        if buffer.bytes < MOST_BYTES:
            return True
        self.held_up = not self._wanted()
        return not self.held_up

    def go_on(self) -> None:
        """Take messages that were held up, if memory is free again."""
        if self.held_up and (self.buffer.bytes < MOST_BYTES or self._wanted()):
            self.held_up = False
            self._arrived(self.buffer)

    def take_all(self) -> list[MessageArrived]:
        """Take arrived messages up to the memory limit, so that the machine can choose among them."""
        buffer = self.buffer
        taken: list[MessageArrived] = []
        while self.may_take(buffer, len(taken)):
            if (event := self.take()) is not None:
                taken.append(event)
            if buffer.bytes >= MOST_BYTES:  # whether another is wanted is known when the machine has this one
                self.held_up = True
                break
        return taken

    def take(self) -> MessageArrived | None:
        """Take the first message; return `None` if it isn't for the machine.

        A message that can't be read now, for example for lack of memory, stays unsettled. The broker
        redelivers it over the next connection. Later messages are taken as usual.
        """
        received = self.buffer.arrivals.popleft()
        number = next(self.numbers)
        try:
            return self._take(received, number)
        except Exception as error:  # noqa: BLE001 - an edge: nobody else's trouble
            _log.error(
                "%s: a message can't be read now; it stays at the broker until the next connection: %s: %s",
                self._name,
                type(error).__name__,
                loggable(error),
            )
            if self._post is not None and not received.is_stale:
                self.buffer.hold(number, received, None)
                self._post((self.buffer, Leave(delivery=number)))
            return None

    def _take(self, received: Received, number: int) -> MessageArrived | None:
        buffer = self.buffer
        if received.generation != received.consumer.generation:  # stale; a call would take time for each
            self.memory.forget(self._returned_to_broker(received) or ())
            return None
        consumer = self._number_of(received.consumer) if self._batches else None
        event, message, origin = self.reader.read(received, number, consumer=consumer)
        if event.left and not self.reader.takes_left:
            _log.error(
                "%s: message %s was left in progress by an earlier run; it stays on the in-progress queue",
                self._name,
                event.message_id,
            )
            return None
        if self._drops_duplicates or self.memory.has_entries or self._earlier_keys:
            verdict = self._verdict(event, received, message)
            if verdict is Verdict.SETTLE or verdict is Verdict.DUPLICATE:
                self._counters.repeated += 1
                self.repeated.waiting.append(received)
                if event.in_progress:
                    self._machine.duplicate_dropped(event.message_id)
            if verdict is not Verdict.TAKE:
                return None
        size = buffer.hold(event.delivery, received, message)
        if origin is not None:
            buffer.origins[event.delivery] = origin
        return replace(event, size=size) if size else event

    def _verdict(self, event: MessageArrived, received: Received, message: JmsMessage | None) -> Verdict:
        here, as_published = self._identities(received, message, self._sources[event.source])
        flagged = _is_flagged(received)
        redelivered = event.redelivered or flagged
        # The id of a message that was published elsewhere proves nothing on a first delivery. Where producers
        # create the ids, only the flag counts.
        counts = redelivered if self.memory.stable else flagged
        if event.parked is not None and not event.in_progress:
            counts = False
        verdict = self.memory.classify(
            received,
            identity=here,
            published=as_published if counts else None,
            redelivered=flagged,
            message_id=event.message_id if self._drops_duplicates and not event.left else None,
            lane=self._lane(received),
        )
        returned = as_published in self._earlier_keys and (as_published is not None or redelivered)
        if verdict is Verdict.SETTLE or returned:
            self._earlier_link = self.buffer.link
            self.blocked = False
        return verdict

    def _lane(self, received: Received) -> object:
        """Return the consumer of a message if the consumer settles in order, else `None`.

        While the message waits for an earlier delivery, later messages of this consumer wait, too.
        """
        return received.consumer if received.consumer.settles_in_order else None

    def comes_again(self, received: Received) -> bool:
        """Return whether the broker creates the ids and redelivers a message that was settled or handled."""
        memory = self.memory
        return memory.stable and memory.is_repetition(self.identity(received), None, redelivered=False)

    def _number_of(self, consumer: Consumer) -> int | None:
        """Return the machine's number of a consumer that settles in order; `None` for any other."""
        if not consumer.settles_in_order:
            return None
        numbers = self.buffer.consumers
        number = numbers.get(consumer)
        if number is None:
            number = numbers[consumer] = next(self.numbers)
        return number

    def admit_more(self) -> None:
        """Check for further messages after a message was released unsettled.

        The limit or the memory may then have room for another message.
        """
        if self.buffer.arrivals:
            self._arrived(self.buffer)


def _is_flagged(received: Received) -> bool:
    """Return whether a message has the redelivered flag, also if it can't be decoded."""
    here = received.readable
    return here is not None and here.redelivered
