"""Units of work: what each broker really offers, no more.

Source: J123-J127, W21; the comparison of brokers in docs/reference/broker-facts.md.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
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
from airflow_provider_jmsjca.transports.stomp.wire.frames import encode

_log = safe_logger(__name__)

_JOINED: Final = 50
"""How many frames go to the wire at a time."""


class StompUnit:
    """What units of every kind have: what they settle, and whether they are over."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._wire = link.wire
        self._lock = threading.Lock()
        self._over = False
        self._received: list[Received] = []

    def _check_open(self) -> None:
        if not self._link.is_up:
            raise ConnectionLostError(
                "the connection was lost before the commit began; nothing of this unit of work happened"
            )
        if self._over:
            raise ConfigurationError("this unit of work is over; begin a new one")

    def _close(self) -> None:
        with self._lock:
            self._check_open()
            self._over = True

    def _close_for_rollback(self) -> None:
        with self._lock:
            if self._over:
                raise ConfigurationError("this unit of work is over; begin a new one")
            self._over = True

    def _release(self) -> None:
        for received in self._received:
            consumer_of(received).release(received)


class TransactionUnit(StompUnit):
    """A transaction of the broker.

    Acknowledgements go out together with COMMIT: any COMMIT or ABORT on the connection makes ActiveMQ forget
    what was acknowledged before it in whichever transaction, and if that one is undone its messages can't be
    acknowledged again. Only where much is unsettled they go out as they come, for a broker that pages in 200
    messages at a time would otherwise stall; then a receipt makes sure before COMMIT that everything went
    well, for the broker reports an acknowledgement it didn't like, and would commit the rest all the same.
    A message that it has forgotten ends the connection, and so comes again.

    Consumers that promised to settle in order acknowledge with one frame, together with COMMIT. It names the
    last message, which the broker has delivered to that subscription and knows until it is settled. Where
    there is nothing else, there is nothing to make sure of before.
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
        self._consumers: set[StompConsumer] = set()
        self._early: set[StompConsumer] = set()
        self._late: list[Received] = []
        self._late_counts: Counter[StompConsumer] = Counter()
        self._acknowledgements = b""
        self._reply: ReceiptGroup | None = None

    @property
    def largest(self) -> int:
        """The length of the longest frame it has sent."""
        return self._largest

    def blame(self, error: JmsError) -> None:
        """Note an error of the broker that doesn't say what caused it: this unit must not be committed."""
        if self._begun and (self._fault is None or self._tells_of_forgotten(error)):
            self._fault = error

    def encode(self, messages: Iterable[Outgoing]) -> list[bytes]:
        """Return the frames of messages to send."""
        encode, header = self._link.encode, self._header
        return [encode(one, header) for one in messages]

    def send(self, outgoing: Outgoing) -> None:
        """Add a message to send."""
        frame = self._link.encode(outgoing, self._header)
        self._announce(len(frame))
        self._put(frame)

    def send_encoded(self, frames: Sequence[bytes]) -> None:
        """Add messages to send, as `encode` returned them."""
        self._announce(max(map(len, frames)))
        for start in range(0, len(frames), _JOINED):  # in large pieces: small ones wake the reader
            self._put(b"".join(frames[start : start + _JOINED]))

    def _announce(self, size: int) -> None:
        """Say how large a frame is about to leave: the broker may close the connection over it."""
        if size > self._largest:
            self._largest = size
            self._link.limits.sending(size)

    def _put(self, data: bytes) -> None:
        """Leave frames in the buffer, and send it when it is full: nobody sees them before COMMIT."""
        try:
            with self._lock:  # or COMMIT could overtake it
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
        """Add a received message to settle."""
        consumer = consumer_of(received)
        with self._lock:
            self._check_open()
            self._begin()
            claim = consumer.claim(received, self._header)
            if claim is Claim.NONE:
                return
            self._received.append(received)
            self._consumers.add(consumer)
            if claim is Claim.LATE:
                self._late.append(received)
                self._late_counts[consumer] += 1
            elif not consumer.settles_in_order:
                self._early.add(consumer)
                self._to_check = True

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self._link.watch(self)
            if not self._was_begun:
                self._wire.append(encode("BEGIN", [("transaction", self._identifier)]))

    def commit(self, meanwhile: Callable[[], object] | None = None) -> None:
        """Make all of the unit durable, or raise."""
        self.ask()
        self.decide()
        if meanwhile is not None:
            meanwhile()
        self.conclude()

    def ask(self) -> None:
        """Take no more, and ask the broker whether all went well so far: the first step of `commit`.

        Steps of several units can be interleaved; each raises what `commit` raises, and then there is none
        after it.
        """
        try:
            self._close()
        except ConnectionLostError as error:
            self._explain(error)
            raise
        if not self._begun:
            self._give_back()
            return
        with self._undone_if_refused():
            self._acknowledgements = b"".join(
                [
                    *(consumer.acknowledgement_of(self._header) for consumer in self._consumers),
                    *self._late_acknowledgements(),
                ]
            )
            if self._to_check:
                self._reply = self._link.ask()

    def decide(self) -> None:
        """Wait for the answer, and say COMMIT."""
        if not self._begun:
            return
        with self._undone_if_refused():
            if self._reply is not None:
                self._link.wait(self._reply)
                if self._fault is not None:
                    self._give_up_if_forgotten(self._fault)
                    raise PermanentBrokerError(f"the broker refused a part of the unit: {self._fault}")
        self._fault = None
        self._early |= set(self._late_counts)  # COMMIT makes the broker forget their messages
        self._reply = self._link.replies.receipts()
        commit = encode("COMMIT", [("transaction", self._identifier), ("receipt", self._reply.ask())])
        try:
            self._wire.append(self._acknowledgements + commit)
        except ConnectionLostError as error:
            raise in_doubt(error) from error
        with contextlib.suppress(ConnectionLostError):  # `conclude` hears why
            self._wire.flush()

    def _tells_of_forgotten(self, error: JmsError) -> bool:
        return self._link.dialect.forgotten in str(error)

    def _give_up_if_forgotten(self, fault: JmsError) -> None:
        """Close a connection whose broker has forgotten a message: it comes again over another."""
        if self._received and self._tells_of_forgotten(fault):
            loss = ConnectionLostError(f"closed, for a message can't be settled over it any more: {fault}")
            self._link.give_up(loss)
            raise loss

    def conclude(self) -> None:
        """Wait until the broker has committed."""
        if self._reply is None:
            return
        try:
            self._link.wait(self._reply)
            self._link.unwatch(self)
            if self._fault is not None:
                self._give_up_if_forgotten(self._fault)
                _log.warning("Committed all the same: %s", self._fault)
        except PermanentBrokerError:
            self._undone()  # the broker knows it no more, and would put ABORT down to other units
            raise
        except ConnectionLostError as error:
            self._link.unwatch(self)
            raise in_doubt(error) from error
        for consumer in self._consumers:
            consumer.settled(each for each in self._received if each.consumer is consumer)
        self._give_back_late()

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
        """Raise what is to blame for a lost connection, if it is a message of this unit."""
        refusal = self._link.limits.passed(self._largest) if self._largest else None
        if refusal is not None:
            raise refusal from error

    def rollback(self) -> None:
        """Undo the sends; acknowledged messages are unsettled again and still in the caller's hands."""
        self._close_for_rollback()
        self.abandon()

    def abandon(self) -> None:
        """Undo the unit, whichever step it is at before COMMIT."""
        if not self._begun:
            self._give_back()
            return
        if self._link.is_up:
            self._wire.write(encode("ABORT", [("transaction", self._identifier)]))
        self._undone()

    def _undone(self) -> None:
        self._begun = self._was_begun = False
        self._link.unwatch(self)
        for consumer in self._early:
            consumer.acknowledge_early()
        self._release()
        self._give_back_late()

    def _late_acknowledgements(self) -> Iterator[bytes]:
        """Yield the acknowledgements that waited for COMMIT; none of what the broker has back already."""
        for each in self._late:
            if not each.is_stale:
                yield ack(each.token, self._header)

    def _give_back_late(self) -> None:
        """Give back the room that late acknowledgements took at their consumers."""
        counts, self._late_counts = self._late_counts, Counter()
        for consumer, count in counts.items():
            consumer.late_is_over(count)

    def _give_back(self) -> None:
        if self._was_begun:
            self._was_begun = False
            self._link.give_back_transaction(self._identifier)


def in_doubt(error: ConnectionLostError) -> InDoubtError:
    """Return what to raise when the connection is lost during a commit."""
    return InDoubtError(f"the connection was lost during a commit, its outcome is unknown: {error}")


def consumer_of(received: Received) -> StompConsumer:
    """Return the consumer that a message came to.

    Raises:
        ConfigurationError: The message is one of another transport.
    """
    if not isinstance(received.consumer, StompConsumer):
        raise ConfigurationError("a unit of work can settle only messages of its own connection")
    return received.consumer
