"""Consumers and their unsettled messages.

`UnsettledMessages` tracks unsettled messages and reservations by units of work. It has no I/O and no lock.
`StompConsumer` sends and receives; its lock guards the `UnsettledMessages`.
"""

from __future__ import annotations

import contextlib
import enum
import itertools
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import Any, Final, assert_never

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.errors import ConfigurationError, ConnectionLostError, JmsError
from airflow_provider_jmsjca.transports.base import Consumer, OnReceived, Received, Subscription, UnitOfWork
from airflow_provider_jmsjca.transports.stomp.decoding import Decoder, ReceivedFrame
from airflow_provider_jmsjca.transports.stomp.dialects.dialect import consumer_headers
from airflow_provider_jmsjca.transports.stomp.dialects.settlement import Cumulative, Recovery
from airflow_provider_jmsjca.transports.stomp.link.link import Link
from airflow_provider_jmsjca.transports.stomp.link.replies import ReceiptGroup
from airflow_provider_jmsjca.transports.stomp.spill import LARGE, MEMORY
from airflow_provider_jmsjca.transports.stomp.untransformed import set_apart, split_by_id
from airflow_provider_jmsjca.transports.stomp.wire.frames import Frame, encode, nack

_MOST_UNSENT: Final = 100
# A broker that exceeds the prefetch by this much ignores it, and would fill the memory.
_TIMES: Final = 4
_BEYOND: Final = 1000
_LEAST_WINDOW: Final = 1024 * 1024
_BYTES_BEYOND: Final = 16 * 1024 * 1024
_ACK: Final = b"ACK\nid:%b\n\n\0"
_OTHER_CONSUMER: Final = "a message can be settled only by the consumer that received it"
_OUT_OF_ORDER: Final = (
    "a unit of work settles a message while an earlier one is unsettled, but this subscription must settle "
    "in order"
)


class UnsettledMessages:
    """The unsettled messages of one consumer by acknowledgement id.

    With cumulative acknowledgement, a message acknowledged out of order waits until all earlier messages are
    settled.

    Args:
        consumer: The consumer of the messages.

    Attributes:
        frames: Unsettled messages in order of arrival. The consumer adds received messages here.
        early: Ids of messages acknowledged out of order.
    """

    __slots__ = ("_consumer", "_reserved", "early", "frames")

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self.frames: MutableMapping[bytes, Frame] = OrderedDict()
        self._reserved: dict[bytes, bytes | None] = {}
        self.early: set[bytes] = set()

    @property
    def count(self) -> int:
        """Number of unsettled messages that no unit of work has reserved."""
        return len(self.frames) - len(self._reserved)

    def holds(self, received: Received) -> bool:
        """Return whether a message is still unsettled, and not acknowledged out of order.

        Raises:
            ConfigurationError: The message belongs to another consumer.
        """
        if received.consumer is not self._consumer:
            raise ConfigurationError(_OTHER_CONSUMER)
        token = received.token
        current = received.generation == self._consumer.generation
        return current and token in self.frames and token not in self.early

    def take_reserved(self, received: Received) -> bool:
        """Remove a message that a unit of work has reserved; return whether it was unsettled."""
        token = token_bytes(received.token)
        if not self.holds(received) or token not in self._reserved:
            return False
        del self.frames[token], self._reserved[token]
        return True

    def take(self, received: Iterable[Received], *, in_order: bool) -> tuple[list[bytes], int]:
        """Remove messages to be acknowledged now; messages that a unit of work has reserved stay unchanged.

        Args:
            received: The messages.
            in_order: Whether acknowledgement is cumulative: one ACK also settles all earlier messages. A
                message after an unsettled one is then not removed, but added to `early`.

        Returns:
            The ids to send in ACK frames, and the number of removed messages. With `in_order`, there is at
            most one id: that of the last removed message.

        Raises:
            ConfigurationError: A message belongs to another consumer.
        """
        consumer, frames, early = self._consumer, self.frames, self.early
        tokens: list[bytes] = []
        for one in received:
            token: Any = one.token
            if one.consumer is not consumer:
                raise ConfigurationError(_OTHER_CONSUMER)
            if one.generation != consumer.generation or token not in frames or token in self._reserved:
                continue
            if in_order and (token in early or token != next(iter(frames))):
                early.add(token)
                continue
            del frames[token]
            tokens.append(token)
        count = len(tokens)
        if early:
            caught_up, more = self.catch_up()
            if caught_up is not None:
                tokens.append(caught_up)
                count += more
        return tokens[-1:] if in_order else tokens, count

    def reserve(self, received: Received, headers: bytes | None) -> bool:
        """Reserve a message for a unit of work.

        Args:
            received: The message.
            headers: Encoded headers of the unit's acknowledgements; `None` without a broker transaction.

        Returns:
            Whether the message was unsettled.

        Raises:
            ConfigurationError: A unit of work has already reserved the message.
        """
        if not self.holds(received):
            return False
        token = token_bytes(received.token)
        if token in self._reserved:
            raise ConfigurationError("the message is part of a unit of work already")
        self._reserved[token] = headers
        return True

    def release(self, received: Received) -> None:
        """Cancel the reservation of a message."""
        if self.holds(received):
            self._reserved.pop(token_bytes(received.token), None)

    def last_reserved(self, headers: bytes) -> bytes | None:
        """Return the acknowledgement id of the last message reserved with `headers`, or `None`.

        Raises:
            ConfigurationError: An earlier message is unsettled, although the subscription settles in order.
        """
        reserved = self._reserved
        last, count = None, 0
        for token in self._waiting():
            if reserved.get(token) != headers:
                break
            last = token
            count += 1
        if count != list(reserved.values()).count(headers):
            raise ConfigurationError(_OUT_OF_ORDER)
        return last

    def sorted(self, received: Iterable[Received]) -> list[Received]:
        """Return those of the messages that are still unsettled, in order of arrival.

        Raises:
            ConfigurationError: An earlier message is unsettled, although the subscription settles in order.
        """
        by_token = {one.token: one for one in received if self.holds(one)}
        first = list(itertools.islice(self._waiting(), len(by_token)))
        if by_token.keys() != set(first):
            raise ConfigurationError(_OUT_OF_ORDER)
        return [by_token[token] for token in first]

    def settle(self, received: Iterable[Received]) -> None:
        """Remove the settled messages of a unit, and earlier messages acknowledged out of order."""
        current = self._consumer.generation
        mine = []
        for one in received:
            token = token_bytes(one.token)
            if one.generation == current and token in self._reserved:
                del self._reserved[token]
                mine.append(token)
        if self.early:
            self.cover(mine)
        for token in mine:
            del self.frames[token]

    def cover(self, tokens: Iterable[bytes]) -> None:
        """Remove messages acknowledged out of order that arrived before the last of some settled messages.

        The ACK that settles those messages also settles the removed messages.

        Args:
            tokens: Acknowledgement ids of the settled messages.
        """
        left = set(tokens)
        for token in list(self.frames):
            if not left:
                return
            left.discard(token)
            if token in self.early:
                self.early.remove(token)
                del self.frames[token]

    def catch_up(self) -> tuple[bytes | None, int]:
        """Remove messages acknowledged out of order for which all earlier messages are settled.

        Returns:
            The id of the last removed message (`None`: no message was removed), and the number of removed
            messages.
        """
        frames, early = self.frames, self.early
        last, count = None, 0
        while early and (first := next(iter(frames))) in early:
            early.remove(first)
            del frames[first]
            last = first
            count += 1
        return last, count

    def forget(self) -> list[Frame]:
        """Remove all messages for a new generation; return their frames, oldest first."""
        frames = list(self.frames.values())
        self.frames = OrderedDict()
        self._reserved = {}
        self.early = set()
        return frames

    def _waiting(self) -> Iterator[bytes]:
        """Yield the ids of messages that aren't acknowledged out of order."""
        return itertools.filterfalse(self.early.__contains__, self.frames)


def token_bytes(token: object) -> bytes:
    """Return the acknowledgement id that `Received.token` holds; empty if another transport set the token."""
    return token if isinstance(token, bytes) else b""


class Claim(enum.Enum):
    """The result of reserving a message for a unit of work."""

    NONE = enum.auto()  # not reserved: it is no longer unsettled
    DONE = enum.auto()  # reserved; already acknowledged if the unit acknowledges individually
    LATE = enum.auto()  # reserved; the unit acknowledges it together with its COMMIT


def subscribe(
    link: Link,
    subscription: Subscription,
    on_received: OnReceived,
    unit: Callable[[], UnitOfWork] | None = None,
    end_session: Callable[[], None] | None = None,
) -> StompConsumer:
    """Start receiving; raises the errors of `Connection.consume`.

    Args:
        link: The connection.
        subscription: The destination and options of the consumer.
        on_received: Called with each message.
        unit: Begins a unit of work; `None` if messages are settled without units of work.
        end_session: Called when the consumer is closed; `None` if it has no session of its own.
    """
    link.prepare_for(subscription)
    consumer = StompConsumer(
        link, subscription, on_received, set_apart(link, subscription), unit, end_session=end_session
    )
    consumer.start()
    return consumer


def delete_subscription(link: Link, name: str, destination: Destination) -> None:
    """Delete an idle durable subscription and its messages; see `Connection.delete_durable`."""
    receipts = link.replies.receipts(blame=True)
    subscription = Subscription(destination=destination, durable_name=name)
    link.dialect.check(subscription, link.broker, link.client_id)
    for command, headers in link.dialect.delete_durable(subscription, link.client_id):
        if command == "SUBSCRIBE":
            link.routes.expect(headers["id"])
        link.wire.append(encode(command, [*headers.items(), ("receipt", receipts.ask())]))
    link.wait(receipts)


class StompConsumer:
    """A consumer on a STOMP connection.

    The lock is held only briefly, and never while writing to the socket, because the reader takes it too.

    With `Subscription.in_order`, and if the broker supports cumulative acknowledgement, one frame
    acknowledges all messages up to the named one. Compared with one frame for each message, ActiveMQ Classic
    needs half the time. In a transaction it needs a fifth, because it searches the transaction once for each
    frame.

    Attributes:
        generation: The current generation. `recover` and `close` begin a new one, which makes earlier
            messages stale.
        settles_in_order: Whether acknowledgements are cumulative: one ACK settles all messages up to the
            named one.
        subscription: The subscription of the consumer.
    """

    # With this many attributes, access through a dictionary would be slower.
    __slots__ = (
        "__weakref__",
        "_acknowledgement",
        "_apart",
        "_apart_identifier",
        "_apart_key",
        "_closed",
        "_decoder",
        "_dialect",
        "_end_session",
        "_handing_back",
        "_heaviest",
        "_identifier",
        "_key",
        "_late",
        "_limit",
        "_link",
        "_lock",
        "_most",
        "_most_bytes",
        "_most_late",
        "_most_repeated",
        "_most_unsent",
        "_on_received",
        "_options",
        "_repeated",
        "_unit",
        "_unsettled",
        "_waiting",
        "_waiting_bytes",
        "_wire",
        "generation",
        "settles_in_order",
        "subscription",
    )

    def __init__(
        self,
        link: Link,
        subscription: Subscription,
        on_received: OnReceived,
        apart: tuple[str, ...] = (),
        unit: Callable[[], UnitOfWork] | None = None,
        *,
        end_session: Callable[[], None] | None = None,
    ) -> None:
        self.generation = 0
        self._link = link
        self._dialect = link.dialect
        self._wire = link.wire
        self.subscription = subscription
        self._unit = unit
        self._end_session = end_session
        self._options = consumer_headers(link.dialect, subscription.destination)
        self._on_received = on_received
        self._decoder = Decoder(link.dialect, subscription)
        self._acknowledgement = link.dialect.acknowledgement
        self._lock = threading.Lock()
        self._key = b""
        self._identifier = ""
        # Of the second subscription, to messages that must not be transformed.
        self._apart = apart
        self._apart_key = b""
        self._apart_identifier = ""
        self._closed = False
        self._handing_back = False
        self._unsettled = UnsettledMessages(self)
        self.settles_in_order = not apart and _may_accumulate(link, subscription)
        # Send acknowledgements early enough that the broker can refill the prefetch window.
        self._most_unsent = max(1, min(_MOST_UNSENT, link.dialect.prefetch(subscription) // 4))
        # If the whole prefetch waited for the commit, the unit would receive no further message.
        self._most_late = link.dialect.prefetch(subscription) - 1
        self._late = 0
        self._waiting: deque[tuple[Frame, bool]] = deque()
        self._limit = sys.maxsize
        if subscription.prefetch is not None and not link.dialect.counts_messages:
            self._limit = subscription.prefetch
        self._most_repeated = _TIMES * link.dialect.prefetch(subscription) + _BEYOND
        self._most = self._most_repeated if link.dialect.counts_messages else sys.maxsize
        self._repeated = 0
        self._waiting_bytes = 0
        # A message larger than the window is sent nevertheless: it counts as one window.
        window = link.dialect.window(subscription)
        self._heaviest = sys.maxsize if window is None else max(window, _LEAST_WINDOW)
        self._most_bytes = sys.maxsize if window is None else _TIMES * self._heaviest + _BYTES_BEYOND

    def unit(self, received: Received) -> UnitOfWork:
        """Open the unit of work of a message: a transaction of the connection."""
        del received
        if self._unit is None:
            raise AssertionError("replies to requests are settled without a unit of work")
        return self._unit()

    def start(self) -> None:
        """Subscribe, and wait until the broker confirms."""
        receipts = self._link.replies.receipts(blame=True)
        with self._lock:
            self._wire.append(self._subscribe(receipts.ask()))
        try:
            self._confirm(receipts)
        except BaseException:
            self._remove_routes()
            raise

    def _confirm(self, receipts: ReceiptGroup) -> None:
        """Wait until the broker has confirmed SUBSCRIBE and delivers the backlog."""
        self._link.wait(receipts)
        commands = self._dialect.after_subscribe(self.subscription, self._link.new_subscription_id())
        if not commands:
            return
        receipts = self._link.replies.receipts(blame=True)
        *first, (command, headers) = commands
        self._wire.append(
            b"".join(encode(each, more.items()) for each, more in first)
            + encode(command, [*headers.items(), ("receipt", receipts.ask())])
        )
        self._link.wait(receipts)

    def _subscribe(self, receipt: str) -> bytes:
        subscription, beside = self.subscription, b""
        if self._apart:
            subscription, apart = split_by_id(subscription, self._apart)
            beside = self._subscribe_apart(apart)
        headers = self._options | self._dialect.subscribe(subscription, self._link.client_id)
        self._identifier = headers.setdefault("id", self._link.new_subscription_id())
        self._key = self._link.routes.add(self._identifier, self.on_frame, subscription.destination)
        headers |= {"ack": "client" if self.settles_in_order else "client-individual", "receipt": receipt}
        return beside + encode("SUBSCRIBE", headers.items())

    def _subscribe_apart(self, subscription: Subscription) -> bytes:
        headers = consumer_headers(self._dialect, subscription.destination)
        headers |= self._dialect.subscribe(subscription, self._link.client_id)
        self._apart_identifier = self._link.new_subscription_id()
        self._apart_key = self._link.routes.add(
            self._apart_identifier, self.on_frame, subscription.destination
        )
        headers |= {"id": self._apart_identifier, "ack": "client-individual"}
        return encode("SUBSCRIBE", headers.items())

    def _remove_routes(self) -> None:
        self._link.routes.remove(self._key)
        if self._apart:
            self._link.routes.remove(self._apart_key)

    def _unsubscribe(self, receipt: str | None = None) -> bytes:
        headers = {"id": self._identifier}
        if receipt is not None:
            headers["receipt"] = receipt
        beside = encode("UNSUBSCRIBE", [("id", self._apart_identifier)]) if self._apart else b""
        return beside + encode("UNSUBSCRIBE", headers.items())

    def on_frame(self, frame: Frame) -> None:
        """Handle a message of the subscription; called by the reader."""
        token = self._acknowledgement(frame)
        if not token or 0 in token:  # not valid in an ACK
            raise ConnectionLostError(
                "the broker sent a message that can't be acknowledged: it has no valid ack header, or lacks "
                "the header that its dialect's acknowledgement() reads"
            )
        if len(frame.body) + len(frame.head) >= LARGE:
            frame = MEMORY.hold(frame)
        with self._lock:
            # A message of an earlier generation.
            if frame.key != self._key and not (self._apart and frame.key == self._apart_key):
                return
            ending = self._closed or self._handing_back
            frames = self._unsettled.frames
            if not ending and (self._waiting or len(frames) >= self._limit):
                self._wait(frame)
                return
            if len(frames) >= self._most or token in frames:
                self._check_flood(token)
            frames[token] = frame
            if ending:
                return
            generation = self.generation
        self._on_received(ReceivedFrame(self, token, generation, self._decoder, frame, False))

    def _check_flood(self, token: bytes) -> None:
        count = self._unsettled.count
        if count >= self._most:
            raise _too_much(f"{count} messages", self.subscription)
        if token in self._unsettled.frames:  # after a rollback, redelivery may overtake our own bookkeeping
            self._repeated += 1
            if self._repeated >= self._most_repeated:
                raise _too_much(f"{self._repeated} repetitions", self.subscription)

    def _wait(self, frame: Frame) -> None:
        self._waiting.append((frame, False))
        self._waiting_bytes += self._weight(frame)
        if self._waiting_bytes > self._most_bytes:
            raise _too_much(f"{self._waiting_bytes} bytes", self.subscription)

    def _weight(self, frame: Frame) -> int:
        return min(frame.size, self._heaviest)

    def _hand_out(self) -> None:
        """Pass waiting messages to the callback until the prefetch is reached; called by the reader."""
        while True:
            with self._lock:
                frames = self._unsettled.frames
                if self._closed or not self._waiting or len(frames) >= self._limit:
                    return
                frame, again = self._waiting.popleft()
                self._waiting_bytes -= self._weight(frame)
                token = self._acknowledgement(frame) or b""
                frames[token] = frame
                generation = self.generation
            self._on_received(ReceivedFrame(self, token, generation, self._decoder, frame, again))

    def acknowledge(self, received: Iterable[Received]) -> None:
        """Settle messages without a unit of work.

        Messages that were handed back (`Received.is_stale`) are ignored, because the broker redelivers them.
        """
        with self._lock:
            tokens, count = self._unsettled.take(received, in_order=self.settles_in_order)
            unsent = 0
            if tokens:
                frames = b"".join(map(_ACK.__mod__, tokens))
                latest = self if self.settles_in_order else None
                unsent = self._wire.append_lazily(frames, count=count, latest=latest)
        if unsent >= self._most_unsent:
            self._wire.nudge(full=True)
        if self._waiting:
            self._go_on()

    def _acknowledge_up_to(self, taken: tuple[bytes | None, int]) -> bool:
        """Buffer an ACK that settles a message and all earlier ones.

        Args:
            taken: The id for the ACK (`None`: send no ACK), and the number of messages that the ACK settles.

        Returns:
            Whether the buffer must be sent now.
        """
        token, count = taken
        if token is None:
            return False
        return self._wire.append_lazily(_ACK % token, count=count, latest=self) >= self._most_unsent

    def claim(self, received: Received, headers: bytes | None) -> Claim:
        """Reserve a message for a unit of work, and acknowledge the message if `headers` are given.

        With cumulative acknowledgement, `acknowledgement_of` returns one ACK for all reserved messages.
        Otherwise the unit sends the acknowledgements together with its COMMIT (see `TransactionUnit`). With
        many unsettled messages the acknowledgement is sent immediately, because the broker needs it to
        deliver more.

        Raises:
            ConfigurationError: A unit of work has already reserved the message.
        """
        with self._lock:
            if not self._unsettled.reserve(received, headers):
                return Claim.NONE
            self._wire.has_acknowledged = True
            if headers is None or self.settles_in_order:
                return Claim.DONE
            if self._late < self._most_late and self._link.take_late():
                self._late += 1
                return Claim.LATE
            full = self._wire.append_lazily(ack(received.token, headers), count=1) >= self._most_unsent
        if full:
            self._wire.nudge(full=True)
        return Claim.DONE

    def late_is_over(self, count: int) -> None:
        """Record that `count` acknowledgements are no longer deferred to COMMIT: their unit has ended."""
        with self._lock:
            self._late -= count
        self._link.give_back_late(count)

    def acknowledge_early(self) -> None:
        """Stop deferring acknowledgements to COMMIT, so that their failure is found before COMMIT.

        Units call this when they are rolled back, because the broker may have forgotten the messages that
        the transaction had acknowledged.
        """
        self._most_late = 0

    def acknowledgement_of(self, headers: bytes) -> bytes:
        """Return the cumulative ACK frame for the messages reserved by a unit.

        Send the frame directly before COMMIT. Any COMMIT or ABORT makes ActiveMQ forget all messages
        acknowledged before it on the connection, also in other transactions.

        Args:
            headers: The headers that name the transaction, encoded.

        Raises:
            ConfigurationError: An earlier message is unsettled, although the subscription settles in order.
        """
        with self._lock:
            last = self._unsettled.last_reserved(headers)
        return b"" if last is None else ack(last, headers)

    def sorted(self, received: list[Received]) -> list[Received]:
        """Return the messages of a unit that are still unsettled, in order of arrival.

        Without cumulative acknowledgement, return `received` unchanged.

        Raises:
            ConfigurationError: An earlier message is unsettled, although the subscription settles in order.
        """
        if not self.settles_in_order:
            return received
        with self._lock:
            return self._unsettled.sorted(received)

    def release(self, received: Received) -> None:
        """Cancel the reservation of a message, so that it is unsettled again."""
        with self._lock:
            self._unsettled.release(received)

    def settled(self, received: Iterable[Received], late: int = 0) -> None:
        """Record that the commit of a unit has settled its messages.

        Messages that were acknowledged out of order, and waited only for these, are acknowledged now.

        Args:
            received: The messages.
            late: Number of the unit's acknowledgements that were deferred to COMMIT; see `late_is_over`.
        """
        full, unsettled = False, self._unsettled
        with self._lock:
            self._late -= late
            unsettled.settle(received)
            if unsettled.early:
                full = self._acknowledge_up_to(unsettled.catch_up())
        if late:
            self._link.give_back_late(late)
        if full:
            self._wire.nudge(full=True)
        if self._waiting:
            self._go_on()

    def settle(self, received: Received, headers: bytes) -> bool:
        """Acknowledge a reserved message; a cumulative ACK also settles all earlier messages.

        The ACK frame is buffered. It is sent at the latest when the caller waits for a receipt.

        Returns:
            Whether the message was still unsettled.
        """
        with self._lock:
            if self._unsettled.early and self._unsettled.holds(received):
                self._unsettled.cover([token_bytes(received.token)])
            if not self._unsettled.take_reserved(received):
                return False
            self._wire.has_acknowledged = True
            full = self._wire.append(ack(received.token, headers))
            full |= self._acknowledge_up_to(self._unsettled.catch_up())
        if full:
            self._wire.nudge(full=True)
        self._go_on()
        return True

    def _go_on(self) -> None:
        if self._waiting:
            self._wire.call_soon(self._hand_out)

    def _forget(self) -> list[Frame]:
        """Begin a new generation; return the unsettled frames of the old one, oldest first."""
        self.generation += 1
        frames = [*self._unsettled.forget(), *(frame for frame, _ in self._waiting)]
        self._waiting_bytes = self._repeated = 0
        self._waiting.clear()
        return frames

    def recover(self) -> None:
        """Have every unsettled message redelivered: by the broker, or from memory (`Recovery.LOCAL`)."""
        if self._closed:
            return
        if not self._link.is_up:
            raise ConnectionLostError("the connection is lost; its messages are redelivered")
        recovery = self._dialect.recovery(self.subscription)
        match recovery:
            case Recovery.RESUBSCRIBE:
                with self._given_up_on_failure():
                    self._resubscribe()
            case Recovery.NEGATIVE_ACKNOWLEDGE:
                with self._lock:
                    tokens = [self._acknowledgement(frame) for frame in self._forget()]
                    self._wire.append(b"".join([nack(token) for token in tokens if token is not None]))
                self._wire.flush()
            case Recovery.HAND_BACK:
                # Unsubscribe first: with an active consumer, the messages returned first would overtake the
                # messages still to be returned.
                with self._given_up_on_failure():
                    self._hand_back()
                    self._subscribe_again()
            case Recovery.LOCAL:
                with self._lock:
                    held = self._forget()
                    self._waiting.extend([(frame, True) for frame in held])
                    self._waiting_bytes = sum(map(self._weight, held))
                self._wire.call_soon(self._hand_out)
            case Recovery.DISCONNECT:
                self._disconnect()
            case _:
                assert_never(recovery)

    @contextlib.contextmanager
    def _given_up_on_failure(self) -> Iterator[None]:
        """Close the connection if handing back messages or resubscribing fails.

        Otherwise the consumer would stay open and receive nothing.
        """
        try:
            yield
        except JmsError as error:
            self._link.give_up(
                ConnectionLostError(f"the connection was closed, because returning messages failed: {error}")
            )
            raise

    def _resubscribe(self) -> None:
        receipts = self._link.replies.receipts(blame=True)
        with self._lock:
            self._forget()
            self._remove_routes()
            self._wire.append(self._unsubscribe())
            self._wire.append(self._subscribe(receipts.ask()))
        self._confirm(receipts)

    def _subscribe_again(self) -> None:
        receipts = self._link.replies.receipts(blame=True)
        with self._lock:
            # Messages in transit at the end of a subscription are unsettled: `UnsettledAfterUnsubscribe`.
            self.settles_in_order &= self._dialect.cumulative is Cumulative.SUBSCRIPTION
            self._remove_routes()
            self._handing_back = False
            self._wire.append(self._subscribe(receipts.ask()))
        self._confirm(receipts)

    def _disconnect(self) -> None:
        with self._lock:
            held = self._forget()
        if held:
            self._link.give_up(
                ConnectionLostError(
                    "the connection was closed to return messages: this server has no other way"
                )
            )

    def close(self, *, delete_durable: bool = False) -> None:
        """End the subscription, and hand unsettled messages back to the broker. Closing twice is harmless."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        try:
            if self._link.is_up:
                self._hand_back()
        finally:
            self._remove_routes()
            with self._lock:
                self._forget()
            if self._end_session is not None:
                self._end_session()
        if delete_durable and self.subscription.durable_name is not None:
            delete_subscription(self._link, self.subscription.durable_name, self.subscription.destination)

    def _hand_back(self) -> None:
        receipts = self._link.replies.receipts(blame=True)
        with self._lock:
            # Make messages stale before UNSUBSCRIBE: a later acknowledgement would settle nothing.
            held = self._forget()
            self._handing_back = True
            self._wire.append(self._unsubscribe(receipts.ask()))
        self._link.wait(receipts)
        with self._lock:
            held += self._forget()
        recovery = self._dialect.recovery(self.subscription)
        if recovery is Recovery.DISCONNECT and held:
            self._link.give_up(
                ConnectionLostError(
                    "the connection was closed to return messages: this server has no other way"
                )
            )
        if recovery is Recovery.HAND_BACK or (recovery is Recovery.NEGATIVE_ACKNOWLEDGE and held):
            tokens = [self._acknowledgement(frame) for frame in held]
            # Messages that the broker doesn't requeue would stay unsettled, and reach no consumer.
            with self._given_up_on_failure():
                self._link.orphans.hand_back([token for token in tokens if token is not None])


def _may_accumulate(link: Link, subscription: Subscription) -> bool:
    """Return whether a new consumer may use cumulative acknowledgement."""
    if not subscription.in_order:
        return False
    match link.dialect.cumulative:
        case Cumulative.UNUSED:
            return False
        case Cumulative.SUBSCRIPTION:
            return True
        case Cumulative.CONNECTION:
            recovery = link.dialect.recovery(subscription)
            return (
                subscription.alone
                and recovery is not Recovery.NEGATIVE_ACKNOWLEDGE
                and link.routes.take_alone()
            )
        case _ as other:
            assert_never(other)


def _too_much(what: str, subscription: Subscription) -> ConnectionLostError:
    return ConnectionLostError(
        f"the broker sent {what} of {subscription.destination} that are unsettled, far more than the "
        "prefetch allows"
    )


def ack(token: object, headers: bytes = b"") -> bytes:
    """Return an ACK frame."""
    # The id is sent unchanged: escaped input stays escaped.
    return b"ACK\nid:%b\n%b\n\0" % (token_bytes(token), headers)
