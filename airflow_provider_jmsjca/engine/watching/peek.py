"""Blocking probes of a queue over an open connection."""

from __future__ import annotations

import contextlib
import itertools
import queue as queues
import threading
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from datetime import timedelta

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.errors import JmsError, PoisonMessageError
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.transports.base import Connection, Received, Subscription

_log = safe_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The result of a probe that found messages on a queue.

    Attributes:
        message: The first message; `None` if it can't be decoded.
        deliveries: Number of deliveries of the message, including the probe; 0 if probes don't count as
            deliveries.
    """

    message: JmsMessage | None
    deliveries: int = 0


_WAIT = timedelta(seconds=1)


def peek(connection: Connection, queue: Destination, selector: str | None, within: timedelta = _WAIT) -> bool:
    """Return whether a queue has a message; blocks.

    The queue is browsed where the broker allows it. Otherwise one message is received, and then handed back
    to the broker.

    Args:
        connection: An open connection.
        queue: A queue, not a topic.
        selector: Only matching messages count.
        within: Time to wait for a message where the broker can't be browsed.

    Raises:
        CapabilityError: The selector can't work on this broker.
        ConnectionLostError: The connection is lost.
        PermanentBrokerError: The broker refuses.
    """
    if connection.capabilities.browse:
        (found,) = connection.first_messages([(queue, selector)])
        if isinstance(found, JmsError):
            raise found
        return found is not None
    arrived = threading.Event()

    def on_received(_received: Received) -> None:
        arrived.set()

    subscription = Subscription(destination=queue, selector=selector, prefetch=1)
    consumer = connection.consume(subscription, on_received)
    try:
        return arrived.wait(within.total_seconds())
    finally:
        consumer.close()


def browse_or_receive(
    connection: Connection,
    queue: Destination,
    selector: str | None,
    limit: int,
    within: timedelta = _WAIT,
) -> Iterator[JmsMessage]:
    """Yield messages of a queue in order, and leave them there; blocks.

    If the broker allows it, the queue is browsed, and the readable part of an undecodable message is yielded.
    Otherwise messages are received, and handed back at the end; undecodable messages are skipped.

    Args:
        connection: An open connection.
        queue: A queue, not a topic.
        selector: Only matching messages are yielded.
        limit: Maximum number of messages.
        within: Time to wait for each message where the broker can't be browsed.

    Raises:
        CapabilityError: The selector can't work on this broker.
        ConnectionLostError: The connection is lost.
        PermanentBrokerError: The broker refuses.
    """
    if connection.capabilities.browse:
        with contextlib.closing(_browsed(connection, queue, selector)) as browsed:
            yield from itertools.islice(browsed, limit)
        return
    arrived: queues.SimpleQueue[Received] = queues.SimpleQueue()
    consumer = connection.consume(
        Subscription(destination=queue, selector=selector, prefetch=limit), arrived.put
    )
    try:
        for _ in range(limit):
            try:
                received = arrived.get(timeout=within.total_seconds())
            except queues.Empty:
                return
            try:
                yield received.message
            except PoisonMessageError as error:
                _log.warning("A message on %s can't be decoded: %s", queue, error)
    finally:
        consumer.close()


def _browsed(
    connection: Connection, queue: Destination, selector: str | None
) -> Generator[JmsMessage, None, None]:
    yield from connection.browse(queue, selector)
