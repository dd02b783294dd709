"""Buffer of messages that a session has received from one destination."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import replace

from airflow_provider_jmsjca.core.destination import DestinationKind
from airflow_provider_jmsjca.core.prefetch import for_unsettled_session
from airflow_provider_jmsjca.errors import ConfigurationError, JmsError, PoisonMessageError
from airflow_provider_jmsjca.transports.base import Connection, Consumer, Received, Subscription

# With a timeout of 0, seconds for messages that the broker has already sent to pass through the reader.
_ROUND_TRIP = 0.1


class Inbox:
    """A subscription with a buffer no larger than its prefetch.

    An inbox always has one consumer. With several, the broker would distribute the messages among them, and
    the order would be lost. So the prefetch limits the unsettled messages that the caller can hold.

    Args:
        connection: The connection on which to subscribe.
        subscription: The destination and its options, with the prefetch.
        lock: Guards the inbox, and wakes waiting callers.
    """

    def __init__(self, connection: Connection, subscription: Subscription, lock: threading.Condition) -> None:
        self._connection = connection
        self._subscription = subscription
        self._lock = lock
        self._buffer: deque[Received] = deque()
        self._consumer: Consumer | None = None
        self._unsettled = 0
        self._waiting_receivers = False
        self._loss: JmsError | None = None

    def connection_lost(self, reason: JmsError) -> None:
        """Handle the loss of the connection: buffered messages have returned to the broker."""
        with self._lock:
            self._loss = reason
            self._buffer = deque()
            self._lock.notify_all()

    def take(self, timeout: float) -> Received | None:
        """Return the next message; `None` when the time is up.

        Args:
            timeout: Seconds; 0 waits only for messages that the broker has already sent.

        Raises:
            ConnectionLostError: The connection is lost.
            ConfigurationError: The time is up, and the caller holds as many unsettled messages as the
                prefetch allows, so no more would ever arrive.
            CapabilityError: The broker lacks a capability for the subscription; see `Connection.consume`.
        """
        if self._consumer is None:
            self._consumer = self._connection.consume(self._subscription, self._put)
        buffer = self._buffer  # no lock: only this thread removes messages, and a loss replaces the buffer
        while buffer:
            received = buffer.popleft()
            if not received.is_stale:
                self._unsettled += 1
                return received
        if not timeout:
            self._connection.synchronize()
        with self._lock:
            if self._wait(time.monotonic() + (timeout or _ROUND_TRIP)):
                self._unsettled += 1
                return self._buffer.popleft()
            if self._loss is not None:
                raise type(self._loss)(str(self._loss)) from self._loss
            if self._unsettled >= (self._subscription.prefetch or 1):
                raise ConfigurationError(
                    f"{self._unsettled} messages of {self._subscription.destination} are unsettled, as many"
                    " as the prefetch allows: settle them, or give the session a larger prefetch"
                )
        return None

    def _wait(self, deadline: float) -> bool:
        """Wait for a message or a loss; return whether there is a message."""
        self._waiting_receivers = (
            True  # set before the check of the buffer, so that each later message notifies
        )
        try:
            self._lock.wait_for(
                lambda: self._has_current() or self._loss is not None,
                min(deadline - time.monotonic(), threading.TIMEOUT_MAX),
            )
        finally:
            self._waiting_receivers = False
        return self._has_current()

    def decode_ahead(self) -> None:
        """Decode the messages in the buffer now, so that `take` returns decoded messages."""
        with self._lock:
            # The buffer is copied, because further messages are added to it without the lock.
            waiting = [received for received in tuple(self._buffer) if not received.is_on_disk]
        for received in waiting:
            try:
                _ = received.message
            except PoisonMessageError:  # raised again when the caller reads this message
                continue

    def settle_singly(self) -> None:
        """Prevent a message that stays unsettled from blocking later messages.

        An unsettled message blocks others if the consumer settles in order, or if the prefetch is used up. In
        both cases the inbox subscribes again, without order, and in the second case with a larger prefetch.
        The broker then redelivers all unsettled messages. A non-durable subscription to a topic keeps its
        prefetch, because a new subscription would lose messages.

        Raises:
            ConnectionLostError: The connection is lost.
        """
        consumer, subscription = self._consumer, self._subscription
        if consumer is None:
            return
        prefetch = subscription.prefetch or 1
        keeps = (
            subscription.destination.kind is DestinationKind.QUEUE or subscription.durable_name is not None
        )
        if keeps and self._unsettled >= prefetch:
            prefetch = for_unsettled_session(prefetch)
        elif not consumer.settles_in_order:
            return
        self._subscription = replace(subscription, in_order=False, prefetch=prefetch)
        self.close()
        self._unsettled = 0
        self._consumer = self._connection.consume(self._subscription, self._put)

    def note_settled(self, count: int) -> None:
        """Note that `count` of the taken messages are settled."""
        with self._lock:
            self._unsettled -= count

    def recover(self) -> None:
        """Hand all unsettled messages, taken or not, back to the broker, which redelivers them in order.

        Raises:
            ConnectionLostError: The connection is lost.
        """
        if self._consumer is None:
            return
        self._consumer.recover()
        with self._lock:
            self._unsettled = 0
            # A stale message that arrives later is dropped when it reaches the front of the buffer.
            self._has_current()

    def close(self) -> None:
        """End the subscription; unsettled and unread messages return to the broker."""
        with self._lock:
            consumer, self._consumer = self._consumer, None
            self._buffer.clear()
        if consumer is not None:
            consumer.close()

    def _has_current(self) -> bool:
        """Drop messages at the front that have returned to the broker; return whether others are buffered."""
        while self._buffer and self._buffer[0].is_stale:
            self._buffer.popleft()
        return bool(self._buffer)

    def _put(self, received: Received) -> None:
        self._buffer.append(received)
        if self._waiting_receivers:
            with self._lock:
                self._lock.notify_all()
