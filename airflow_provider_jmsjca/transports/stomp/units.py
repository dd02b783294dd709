"""Units of work, limited to the guarantees that each broker gives.

Source: J123-J127, W21; the comparison of brokers in docs/reference/broker-facts.md.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from airflow_provider_jmsjca.errors import (
    ConfigurationError,
    ConnectionLostError,
    InDoubtError,
    JmsError,
    PermanentBrokerError,
)
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.transports.base import Outgoing, Received
from airflow_provider_jmsjca.transports.stomp.consumer import Claim, StompConsumer, ack
from airflow_provider_jmsjca.transports.stomp.link.link import Link
from airflow_provider_jmsjca.transports.stomp.link.replies import ReceiptGroup

_log = safe_logger(__name__)

_JOINED: Final = 50
"""Number of frames appended to the wire at once."""


class StompUnit:
    """Base of all units of work: keeps the messages to settle and whether the unit has ended."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._wire = link.wire
        self._lock = threading.Lock()
        self._over = False
        self._received: dict[StompConsumer, list[Received]] = {}

    def _check_open(self) -> None:
        if not self._link.is_up:
            raise ConnectionLostError(
                "the connection was lost before the commit began; this unit of work had no effect"
            )
        if self._over:
            raise ConfigurationError("this unit of work is over; begin a new one")

    def _close_for_rollback(self) -> None:
        with self._lock:
            if self._over:
                raise ConfigurationError("this unit of work is over; begin a new one")
            self._over = True

    def _release(self) -> None:
        for consumer, messages in self._received.items():
            for received in messages:
                consumer.release(received)


class TransactionUnit(StompUnit):
    """A broker transaction.

    Acknowledgements are sent together with COMMIT. The reason: any COMMIT or ABORT on the connection makes
    ActiveMQ forget all messages acknowledged before it, also in other open transactions. If one of those
    transactions is rolled back later, its messages cannot be acknowledged again.

    With many unsettled messages, acknowledgements are sent immediately instead, because a broker that pages
    in 200 messages at a time would otherwise stall. The unit then waits for a receipt before COMMIT, to be
    sure that all acknowledgements succeeded. The broker reports a rejected one with an ERROR, but would still
    commit the rest. If the broker has forgotten a message, the unit closes the connection and the message is
    redelivered.

    A consumer that settles in order acknowledges with one frame, sent together with COMMIT. The frame names
    the last message, which the broker remembers until it is settled. A unit with only such acknowledgements
    needs no receipt before COMMIT.
    """

    def __init__(self, link: Link) -> None:
        super().__init__(link)
        begun = link.take_transaction()
        self._was_begun = begun is not None
        self._identifier = link.new_transaction_id() if begun is None else begun
        self._header = b"transaction:%b\n" % self._identifier.encode()
        self._begun = False
        self._to_check = False
        self._largest = 0
        self._fault: JmsError | None = None
        self._early: set[StompConsumer] = set()
        # Acknowledgements deferred to COMMIT, which occupy capacity at their consumers.
        self._late: dict[StompConsumer, list[Received]] = {}
        self._acknowledgements = b""
        self._reply: ReceiptGroup | None = None

    @property
    def largest(self) -> int:
        """The length in bytes of the longest frame that the unit has sent."""
        return self._largest

    def blame(self, error: JmsError) -> None:
        """Record a broker error of unknown cause; the unit must not be committed."""
        if self._begun and (self._fault is None or self._tells_of_forgotten(error)):
            self._fault = error

    def encode(self, messages: Iterable[Outgoing]) -> list[bytes]:
        """Return the SEND frames of messages."""
        encode, header = self._link.encode, self._header
        return [encode(one, header) for one in messages]

    def send(self, outgoing: Outgoing) -> None:
        """Add a message to this unit of work; consumers receive the message after the commit."""
        frame = self._link.encode(outgoing, self._header)
        self._put(frame, len(frame))

    def send_encoded(self, frames: Sequence[bytes]) -> None:
        """Send frames that `encode` returned."""
        largest = max(map(len, frames))
        for start in range(0, len(frames), _JOINED):  # joined, because each piece may wake the reader
            self._put(b"".join(frames[start : start + _JOINED]), largest)

    def _put(self, data: bytes, largest: int) -> None:
        """Buffer frames, and flush a full buffer: the messages are invisible before COMMIT anyway.

        The size of the largest frame is recorded first. A broker closes the connection if a frame is too
        large. The recorded size then shows whether a frame of this unit can be the reason.
        """
        if largest > self._largest:
            self._largest = largest
            limits = self._link.limits
            limits.largest = max(limits.largest, largest)
        try:
            with self._lock:  # so that no other thread sends COMMIT before these frames
                self._check_open()
                self._begin()
                self._to_check = True
                is_full = self._wire.append(data)
            if is_full:
                self._wire.flush()
        except ConnectionLostError as error:
            self._explain(error)
            raise

    def acknowledge(self, received: Received) -> None:
        """Add a received message to this unit of work, whose commit settles the message."""
        consumer = consumer_of(received)
        with self._lock:
            self._check_open()
            self._begin()
            claim = consumer.claim(received, self._header)
            if claim is Claim.NONE:
                return
            self._received.setdefault(consumer, []).append(received)
            if claim is Claim.LATE:
                self._late.setdefault(consumer, []).append(received)
            elif not consumer.settles_in_order:
                self._early.add(consumer)
                self._to_check = True

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self._link.watch(self)
            if not self._was_begun:
                self._wire.append(b"BEGIN\n%b\n\0" % self._header)

    def commit(self, meanwhile: Callable[[], object] | None = None) -> None:
        """Commit the whole unit, or raise."""
        self.ask()
        self.decide()
        if meanwhile is not None:
            meanwhile()
        self.conclude()

    def ask(self) -> None:
        """Close the unit, and request a receipt if one is needed before COMMIT: the first step of `commit`.

        The steps of several units can be interleaved. Each step raises the exceptions of `commit`; after an
        exception, do not call the next step.
        """
        try:
            with self._lock:
                self._check_open()
                self._over = True
        except ConnectionLostError as error:
            self._explain(error)
            raise
        if not self._begun:
            self._give_back()
            return
        with self._undone_if_refused():
            for consumer in self._received:
                if consumer.settles_in_order:
                    self._acknowledgements += consumer.acknowledgement_of(self._header)
            for messages in self._late.values():
                for received in messages:
                    if not received.is_stale:  # otherwise the message was handed back since then
                        self._acknowledgements += ack(received.token, self._header)
            if self._to_check:
                self._reply = self._link.ask()

    def decide(self) -> None:
        """Wait for the receipt, if one was requested, then send COMMIT: the second step of `commit`."""
        if not self._begun:
            return
        with self._undone_if_refused():
            if self._reply is not None:
                self._link.wait(self._reply)
                if self._fault is not None:
                    self._give_up_if_forgotten(self._fault)
                    raise PermanentBrokerError(f"the broker refused a part of the unit: {self._fault}")
        self._fault = None
        self._early.update(self._late)  # the COMMIT makes the broker forget acknowledged messages
        self._reply = self._link.replies.receipts()
        commit = b"COMMIT\n%breceipt:%b\n\n\0" % (self._header, self._reply.ask().encode())
        try:
            self._wire.append(self._acknowledgements + commit)
        except ConnectionLostError as error:
            raise in_doubt(error) from error
        with contextlib.suppress(ConnectionLostError):  # `conclude` raises the cause
            self._wire.flush()

    def _tells_of_forgotten(self, error: JmsError) -> bool:
        return self._link.dialect.forgotten in str(error)

    def _give_up_if_forgotten(self, fault: JmsError) -> None:
        """Close the connection if the broker forgot a message, so that the message is redelivered."""
        if self._received and self._tells_of_forgotten(fault):
            loss = ConnectionLostError(
                f"the connection was closed, because a message can no longer be settled over it: {fault}"
            )
            self._link.give_up(loss)
            raise loss

    def conclude(self) -> None:
        """Wait until the broker confirms COMMIT: the last step of `commit`."""
        if self._reply is None:
            return
        try:
            self._link.wait(self._reply)
            self._link.unwatch(self)
            if self._fault is not None:
                self._give_up_if_forgotten(self._fault)
                _log.warning("The broker confirmed a commit, but refused a part of it: %s", self._fault)
        except PermanentBrokerError:
            # Without an ABORT: the transaction no longer exists, and other units would be blamed for the
            # ERROR.
            self._undone()
            raise
        except ConnectionLostError as error:
            self._link.unwatch(self)
            raise in_doubt(error) from error
        for consumer, messages in self._received.items():
            consumer.settled(messages, late=len(self._late.pop(consumer, ())))

    @contextlib.contextmanager
    def _undone_if_refused(self) -> Iterator[None]:
        try:
            yield
        except (ConfigurationError, PermanentBrokerError):
            self.abandon()
            raise
        except ConnectionLostError as error:
            self._link.unwatch(self)
            self._explain(error)
            raise

    def _explain(self, error: ConnectionLostError) -> None:
        """Raise the refusal if an oversized message of this unit caused the loss of the connection."""
        refusal = self._link.limits.passed(self._largest) if self._largest else None
        if refusal is not None:
            raise refusal from error

    def rollback(self) -> None:
        """Undo the sends; acknowledged messages become unsettled again, and the caller still holds them."""
        self._close_for_rollback()
        self.abandon()

    def abandon(self) -> None:
        """Roll the unit back at any step before COMMIT."""
        if not self._begun:
            self._give_back()
            return
        if self._link.is_up:
            self._wire.write(b"ABORT\n%b\n\0" % self._header)
        self._undone()

    def _undone(self) -> None:
        self._begun = self._was_begun = False
        self._link.unwatch(self)
        for consumer in self._early:
            consumer.acknowledge_early()
        self._release()
        self._give_back_late()

    def _give_back_late(self) -> None:
        """Tell the consumers that the unit's acknowledgements are no longer deferred to COMMIT."""
        late, self._late = self._late, {}
        for consumer, messages in late.items():
            consumer.late_is_over(len(messages))

    def _give_back(self) -> None:
        if self._was_begun:
            self._was_begun = False
            self._link.give_back_transaction(self._identifier)


def in_doubt(error: ConnectionLostError) -> InDoubtError:
    """Return the error to raise when the connection is lost during a commit."""
    return InDoubtError(f"the connection was lost during a commit, its outcome is unknown: {error}")


def consumer_of(received: Received) -> StompConsumer:
    """Return the consumer that received a message.

    Raises:
        ConfigurationError: The message belongs to another transport.
    """
    if not isinstance(received.consumer, StompConsumer):
        raise ConfigurationError("a unit of work can settle only messages of its own connection")
    return received.consumer
