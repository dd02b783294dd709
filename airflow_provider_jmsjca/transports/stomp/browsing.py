"""Looking at a queue without consuming."""

from __future__ import annotations

import logging
import queue
from collections.abc import Iterator

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.errors import ConnectionLostError, PoisonMessageError
from airflow_provider_jmsjca.transports.base import Subscription
from airflow_provider_jmsjca.transports.stomp.decoding import Decoder
from airflow_provider_jmsjca.transports.stomp.dialects.dialect import consumer_headers
from airflow_provider_jmsjca.transports.stomp.link.link import Link
from airflow_provider_jmsjca.transports.stomp.wire.frames import BROWSER, Frame, encode

_log = logging.getLogger(__name__)


def browse(
    link: Link, destination: Destination, selector: str | None, timeout: float
) -> Iterator[JmsMessage]:
    """Yield the messages on a queue; the broker's page size may bound how many.

    One that can't be decoded is logged and yielded as what can be kept of it, a bytes message.

    Raises:
        CapabilityError: The broker can't.
        ConnectionLostError: The connection was lost, or nothing came for `timeout` seconds.
    """
    # ActiveMQ marks as redelivered whatever it has sent to a browser: with a wider window also messages
    # that nobody looked at.
    subscription = Subscription(destination=destination, selector=selector, prefetch=1)
    link.dialect.capabilities.require(link.broker, "browse", purpose="browsing a queue")
    return _frames(link, subscription, timeout)


def _frames(link: Link, subscription: Subscription, timeout: float) -> Iterator[JmsMessage]:
    frames: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
    decoder = Decoder(link.dialect, subscription)
    identifier = link.new_subscription_id()
    headers = consumer_headers(link.dialect, subscription.destination)
    headers |= link.dialect.subscribe(subscription, None)
    headers |= {"id": identifier, "ack": "auto", "browser": "true"}
    receipts = link.replies.receipts(blame=True)
    key = link.routes.add(identifier, lambda frame, _: frames.put(frame))
    take_back = link.on_lost(lambda _: frames.put(None))
    try:
        link.wire.append(encode("SUBSCRIBE", [*headers.items(), ("receipt", receipts.ask())]))
        link.wait(receipts)
        while True:
            try:
                frame = frames.get(timeout=timeout)
            except queue.Empty:
                raise ConnectionLostError(f"the broker sent nothing to browse for {timeout:g} s") from None
            if frame is None:
                raise ConnectionLostError("the connection was lost while browsing")
            if frame.first(BROWSER) == b"end":
                return
            try:
                message = decoder.decode(frame, again=False)
            except PoisonMessageError as error:
                _log.warning("A message on %s can't be decoded: %s", subscription.destination, error)
                message = decoder.salvage(frame)
            yield message
    finally:
        link.routes.remove(key)
        take_back()
        if link.is_up:
            link.wire.write(encode("UNSUBSCRIBE", [("id", identifier)]))
