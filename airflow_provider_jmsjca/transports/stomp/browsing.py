"""Reads messages of a queue without consuming them."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Iterator, Sequence

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.errors import ConnectionLostError, JmsError, PoisonMessageError
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.transports.base import Subscription
from airflow_provider_jmsjca.transports.stomp.decoding import Decoder
from airflow_provider_jmsjca.transports.stomp.dialects.dialect import consumer_headers
from airflow_provider_jmsjca.transports.stomp.link.link import Link
from airflow_provider_jmsjca.transports.stomp.spill import LARGE, MEMORY, SpilledFrame
from airflow_provider_jmsjca.transports.stomp.wire.frames import Frame, encode

_log = safe_logger(__name__)


def browse(
    link: Link, destination: Destination, selector: str | None, timeout: float
) -> Iterator[JmsMessage]:
    """Yield the messages on a queue; the broker's page size may limit their number.

    An undecodable message is logged, and yielded as a bytes message with its readable parts.

    Raises:
        CapabilityError: The broker doesn't support browsing.
        ConnectionLostError: The connection was lost, or nothing arrived for `timeout` seconds.
    """
    link.dialect.capabilities.require(link.broker, "browse", purpose="browsing a queue")
    return _all(link, destination, selector, timeout)


def _all(link: Link, destination: Destination, selector: str | None, timeout: float) -> Iterator[JmsMessage]:
    browser = _Browser(link, destination, selector, ack="auto")
    try:
        while (message := browser.next(timeout)) is not None:
            yield message
    finally:
        browser.close()
        link.wire.nudge()


def first_messages(
    link: Link, queues: Sequence[tuple[Destination, str | None]], timeout: float
) -> list[JmsMessage | JmsError | None]:
    """Browse the first message of each of several queues in one round trip.

    See `Connection.first_messages` for arguments and result.

    Raises:
        CapabilityError: The broker doesn't support browsing.
    """
    link.dialect.capabilities.require(link.broker, "browse", purpose="browsing a queue")
    browsers: list[_Browser | JmsError] = []
    for destination, selector in queues:
        try:
            # With `ack:client` and a prefetch of 1, the broker sends the first message instead of the whole
            # queue.
            browsers.append(_Browser(link, destination, selector, ack="client"))
        except JmsError as error:
            browsers.append(error)
    found: list[JmsMessage | JmsError | None] = []
    in_doubt: list[int] = []
    for number, browser in enumerate(browsers):
        try:
            found.append(browser if isinstance(browser, JmsError) else browser.next(timeout))
        except JmsError as error:
            found.append(error)
            if isinstance(browser, _Browser) and browser.is_blamed_with_others and len(queues) > 1:
                in_doubt.append(number)
        finally:
            if isinstance(browser, _Browser):
                browser.close()
    link.wire.nudge()
    for number in in_doubt:
        found[number] = first_messages(link, [queues[number]], timeout)[0]
    return found


class _Browser:
    """A browsing subscription. The constructor subscribes; the first `next` waits for the broker's answer.

    Args:
        link: The link to the broker.
        destination: A queue.
        selector: Return matching messages only.
        ack: `auto` to receive all messages, `client` to receive the first only.

    Raises:
        ConnectionLostError: The connection is lost.
    """

    def __init__(self, link: Link, destination: Destination, selector: str | None, *, ack: str) -> None:
        # The prefetch is 1, because ActiveMQ marks every message that it sends to a browser as redelivered.
        # With a larger prefetch it would also mark messages that are never read.
        subscription = Subscription(destination=destination, selector=selector, prefetch=1)
        self._link = link
        self._queue = destination
        self._frames: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self._decoder = Decoder(link.dialect, subscription)
        self._identifier = link.new_subscription_id()
        headers = consumer_headers(link.dialect, destination)
        headers |= link.dialect.subscribe(subscription, None)
        headers |= {"id": self._identifier, "ack": ack, "browser": "true"}
        self._receipts = link.replies.receipts(blame=True)
        self._key = link.routes.add(self._identifier, self._came, destination)
        self._take_back = link.on_lost(lambda _: self._frames.put(None))
        self._is_refused = False
        try:
            link.wire.append(encode("SUBSCRIBE", [*headers.items(), ("receipt", self._receipts.ask())]))
        except BaseException:
            self._forget()
            raise

    def next(self, timeout: float) -> JmsMessage | None:
        """Return the next message, `None` after the last.

        Raises:
            PermanentBrokerError: The broker refuses the subscription.
            ConnectionLostError: The connection was lost, or nothing arrived for `timeout` seconds, or a
                spilled message can't be read back from disk.
        """
        try:
            self._link.wait(self._receipts)
        except JmsError:
            self._is_refused = True
            raise
        try:
            frame = self._frames.get(timeout=timeout)
        except queue.Empty:
            raise ConnectionLostError(f"the broker sent nothing to browse for {timeout:g} s") from None
        if frame is None:
            raise ConnectionLostError("the connection was lost while browsing")
        if isinstance(frame, SpilledFrame):
            frame = frame.loaded()
        if self._link.dialect.ends_browsing(frame):
            return None
        try:
            return self._decoder.decode(frame, again=False)
        except PoisonMessageError as error:
            _log.warning("A message on %s can't be decoded: %s", self._queue, error)
            return self._decoder.salvage(frame)

    def _came(self, frame: Frame) -> None:
        """Buffer a message until `next` returns it.

        Large messages count against the memory limit, because a page has hundreds of messages.
        """
        large = len(frame.body) + len(frame.head) >= LARGE
        self._frames.put(MEMORY.hold(frame) if large else frame)

    @property
    def is_blamed_with_others(self) -> bool:
        """Whether this browse failed because of an ERROR that names no receipt.

        Another request may be the cause of such an ERROR.
        """
        return self._is_refused and self._receipts.refused is None and self._link.is_up

    def close(self) -> None:
        """End the subscription. UNSUBSCRIBE is buffered, and sent with later frames or by `Wire.nudge`."""
        self._forget()
        with contextlib.suppress(ConnectionLostError):  # the subscription has ended with the connection
            self._link.wire.append(encode("UNSUBSCRIBE", [("id", self._identifier)]))

    def _forget(self) -> None:
        self._link.routes.remove(self._key)
        self._take_back()
