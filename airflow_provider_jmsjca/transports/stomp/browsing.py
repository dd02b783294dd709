"""Looking at a queue without consuming."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import TYPE_CHECKING

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.errors import ConnectionLostError
from airflow_provider_jmsjca.transports.base import Subscription
from airflow_provider_jmsjca.transports.stomp.decoding import Decoder
from airflow_provider_jmsjca.transports.stomp.destination_options import consumer_headers
from airflow_provider_jmsjca.transports.stomp.frames import BROWSER, Frame, encode

if TYPE_CHECKING:
    from airflow_provider_jmsjca.transports.stomp.connection import StompConnection


def browse(
    connection: StompConnection, destination: Destination, selector: str | None, timeout: float
) -> Iterator[JmsMessage]:
    """Yield the messages on a queue; the broker's page size may bound how many.

    Raises:
        CapabilityError: The broker can't.
        ConnectionLostError: The connection was lost, or nothing came for `timeout` seconds.
    """
    # ActiveMQ marks as redelivered whatever it has sent to a browser: with a wider window also messages
    # that nobody looked at.
    subscription = Subscription(destination=destination, selector=selector, prefetch=1)
    connection.capabilities.require(connection.broker, "browse", purpose="browsing a queue")
    return _frames(connection, subscription, timeout)


def _frames(connection: StompConnection, subscription: Subscription, timeout: float) -> Iterator[JmsMessage]:
    frames: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
    decoder = Decoder(connection.dialect, subscription)
    identifier = connection.new_subscription_id()
    headers = consumer_headers(connection.dialect, subscription.destination)
    headers |= connection.dialect.subscribe(subscription, None)
    headers |= {"id": identifier, "ack": "auto", "browser": "true"}
    receipts = connection.replies.receipts(blame=True)
    key = connection.routes.add(identifier, lambda frame, _: frames.put(frame))
    connection.on_lost(lambda _: frames.put(None))
    try:
        connection.wire.append(encode("SUBSCRIBE", [*headers.items(), ("receipt", receipts.ask())]))
        connection.wait(receipts)
        while True:
            try:
                frame = frames.get(timeout=timeout)
            except queue.Empty:
                raise ConnectionLostError(f"the broker sent nothing to browse for {timeout:g} s") from None
            if frame is None:
                raise ConnectionLostError("the connection was lost while browsing")
            if frame.first(BROWSER) == b"end":
                return
            yield decoder.decode(frame, again=False)
    finally:
        connection.routes.remove(key)
        if connection.is_up:
            connection.wire.write(encode("UNSUBSCRIBE", [("id", identifier)]))
