"""Units of work for brokers without usable transactions: confirm the sends, then acknowledge.

Source: J123-J127, W21; the comparison of brokers in docs/reference/broker-facts.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

from airflow_provider_jmsjca.core.destination import DestinationKind
from airflow_provider_jmsjca.errors import (
    ConfigurationError,
    ConnectionLostError,
    InDoubtError,
    PermanentBrokerError,
)
from airflow_provider_jmsjca.transports.base import Outgoing, Received
from airflow_provider_jmsjca.transports.stomp.consumer import Claim, StompConsumer
from airflow_provider_jmsjca.transports.stomp.link.link import Link
from airflow_provider_jmsjca.transports.stomp.sending import send_confirmed
from airflow_provider_jmsjca.transports.stomp.units import StompUnit, consumer_of, in_doubt


class ConfirmedUnit(StompUnit):
    """Unit of work that sends messages, waits until the broker confirms each, then acknowledges.

    On a crash in between, the sends are kept and the received messages are redelivered: this may duplicate
    messages, but never loses one.

    If the broker drops duplicates and the unit settles exactly one message, its sends get deduplication ids
    derived from the id of that message. After a redelivery, the broker then drops the repeated sends. If a
    unit settles several messages, its sends get no such ids: after a redelivery, the messages may be divided
    among units in another way, and the broker would drop valid sends.
    """

    def __init__(self, link: Link) -> None:
        super().__init__(link)
        self._outgoing: list[Outgoing] = []
        self._frames: list[bytes] = []

    def send(self, outgoing: Outgoing) -> None:
        """Add a message to this unit of work, whose commit sends the message."""
        frame = self._link.encode(outgoing)  # raises if the message can't be sent
        with self._lock:
            self._check_open()
            self._outgoing.append(outgoing)
            self._frames.append(frame)

    def acknowledge(self, received: Received) -> None:
        """Add a received message to this unit of work, whose commit settles the message."""
        consumer = consumer_of(received)
        with self._lock:
            self._check_open()
            if consumer.claim(received, None) is not Claim.NONE:
                self._received.setdefault(consumer, []).append(received)

    def commit(self, meanwhile: Callable[[], object] | None = None) -> None:
        """Commit the whole unit, or raise."""
        del meanwhile  # the wait is too short to be useful, because all sends are encoded already
        with self._lock:
            self._check_open()
            self._over = True
        try:
            groups = [(each, each.sorted(received)) for each, received in self._received.items()]
            if self._outgoing:
                send_confirmed(self._link, self._outgoing, self._identified())
            self._acknowledge(groups)
        except (ConfigurationError, PermanentBrokerError):
            self._release()
            raise
        except InDoubtError:
            raise
        except ConnectionLostError as error:
            raise in_doubt(error) from error

    def _acknowledge(self, groups: list[tuple[StompConsumer, list[Received]]]) -> None:
        frames = [
            (consumer, received)
            for consumer, group in groups
            for received in group
            if not consumer.settles_in_order or received is group[-1]
        ]
        if not self._received:
            return
        for consumer, group in groups:
            if consumer.settles_in_order:
                consumer.settled(group[:-1])  # the ACK of the last one covers them
        receipts = self._link.replies.receipts()
        for number, (consumer, received) in enumerate(frames, 1):
            is_last = number == len(frames)
            header = b"receipt:%b\n" % receipts.ask().encode() if is_last else b""
            if consumer.settle(received, header) and is_last:
                self._link.wait(receipts)
                return
        self._link.synchronize()

    def _identified(self) -> list[bytes]:
        received = list(itertools.chain.from_iterable(self._received.values()))
        if not self._link.dialect.capabilities.deduplicating_send or len(received) != 1:
            return self._frames
        origin = self._origin(received[0])
        if origin is None:
            return self._frames
        return [
            frame
            if outgoing.deduplication_id is not None
            else self._link.encode(
                replace(outgoing, deduplication_id=f"{origin}>{outgoing.destination}#{position}")
            )
            for position, (outgoing, frame) in enumerate(zip(self._outgoing, self._frames, strict=True))
        ]

    def _origin(self, received: Received) -> str | None:
        """Return an id of a delivery that is unique and stays the same on redelivery, or `None`.

        The id contains the subscription, because several topic subscriptions or queues may receive the same
        message id.
        """
        subscription = received.consumer.subscription
        is_topic = subscription.destination.kind is DestinationKind.TOPIC
        message = received.readable
        number = None if message is None else message.message_id
        if number is None or (is_topic and subscription.durable_name is None):
            return None
        if not is_topic:
            return f"{number}>{subscription.destination}"
        return f"{number}>{subscription.destination}>{self._link.client_id}>{subscription.durable_name}"

    def rollback(self) -> None:
        """Undo the sends; acknowledged messages become unsettled again, and the caller still holds them."""
        self._close_for_rollback()
        self._release()
