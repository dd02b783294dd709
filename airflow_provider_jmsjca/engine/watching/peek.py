"""One look whether a queue holds a message, over a connection that is there; it blocks."""

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
    """Messages are there.

    Attributes:
        message: The one seen; `None` if it can't be decoded.
        deliveries: How often the broker has delivered it, our look included; 0 where a look doesn't count.
    """

    message: JmsMessage | None
    deliveries: int = 0


_WAIT = timedelta(seconds=1)


def peek(connection: Connection, queue: Destination, selector: str | None, within: timedelta = _WAIT) -> bool:
    """Say whether a queue holds a message; blocks.

    Brokers that can be browsed are. On others one message is received and handed back.

    Args:
        connection: Where.
        queue: A queue, not a topic.
        selector: Only messages that match count.
        within: How long a broker that can't be browsed may take to deliver one.

    Raises:
        CapabilityError: The selector can't work on this broker.
        ConnectionLostError: The connection is gone.
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
    most: int,
    within: timedelta = _WAIT,
) -> Iterator[JmsMessage]:
    """Yield messages of a queue in its order, and leave them there; blocks.

    Brokers that can be browsed are. On others messages are received, and handed back at the end. Of one that
    can't be decoded a browser yields what can be read; where messages are received it is passed over.

    Args:
        connection: Where.
        queue: A queue, not a topic.
        selector: Only messages that match.
        most: How many at most.
        within: How long a broker that can't be browsed may deliver none.

    Raises:
        CapabilityError: The selector can't work on this broker.
        ConnectionLostError: The connection is gone.
        PermanentBrokerError: The broker refuses.
    """
    if connection.capabilities.browse:
        with contextlib.closing(_browsed(connection, queue, selector)) as browsed:
            yield from itertools.islice(browsed, most)
        return
    arrived: queues.SimpleQueue[Received] = queues.SimpleQueue()
    consumer = connection.consume(
        Subscription(destination=queue, selector=selector, prefetch=most), arrived.put
    )
    try:
        for _ in range(most):
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
