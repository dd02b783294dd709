"""One look at a queue, without consuming."""

from __future__ import annotations

import threading
from datetime import timedelta

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.engine.readiness import browse_once
from airflow_provider_jmsjca.transports.base import Connection, Received, Subscription

_PATIENCE = timedelta(seconds=1)


def peek(
    connection: Connection, queue: Destination, selector: str | None, patience: timedelta = _PATIENCE
) -> bool:
    """Say whether a queue holds a message; blocks.

    Brokers that can be browsed are. On others one message is received and handed back.

    Args:
        connection: Where.
        queue: A queue, not a topic.
        selector: Only messages that match count.
        patience: How long a broker that can't be browsed may take to deliver one.

    Raises:
        CapabilityError: The selector can't work on this broker.
        ConnectionLostError: The connection is gone.
        PermanentBrokerError: The broker refuses.
    """
    if connection.capabilities.browse:
        return browse_once(connection, queue, selector) is not None
    arrived = threading.Event()

    def on_received(_received: Received) -> None:
        arrived.set()

    subscription = Subscription(destination=queue, selector=selector, prefetch=1)
    consumer = connection.consume(subscription, on_received)
    try:
        return arrived.wait(patience.total_seconds())
    finally:
        consumer.close()
