"""What a session receives from one destination, before the caller asks for it."""

from __future__ import annotations

import threading
import time
from collections import deque

from airflow_provider_jmsjca.core.destination import DestinationKind
from airflow_provider_jmsjca.errors import ConfigurationError, JmsError
from airflow_provider_jmsjca.transports.base import Connection, Consumer, Received, Subscription

# How long "no wait" waits for what the broker had already put on the way.
_ROUND_TRIP = 0.1
# After so many seconds without a message the window may be full for another reason than our count: some
# brokers measure it in bytes.
_DOUBT = 0.5
TOPIC_PREFETCH = 1000


class Inbox:
    """A subscription with a small buffer that grows with what the caller keeps unsettled.

    A queue's prefetch starts small, so that a poller takes no messages others could have. When all of it is
    in the caller's hands unsettled, as in a long transaction, nothing more would ever come: a further
    consumer with as much room again joins then. A topic can't be shared like that; its messages are the
    subscriber's own, so its prefetch is large from the start.

    Args:
        connection: Where to subscribe.
        subscription: What to receive; its prefetch is the first one.
        lock: Guards everything here, and wakes whoever waits.
    """

    def __init__(self, connection: Connection, subscription: Subscription, lock: threading.Condition) -> None:
        self._connection = connection
        self._subscription = subscription
        self._lock = lock
        self._buffer: deque[Received] = deque()
        self._consumers: list[Consumer] = []
        self._room = 0
        self._next_room = subscription.prefetch or 1
        self._unsettled = 0
        self._doubted_at = 0
        self._loss: JmsError | None = None

    def lose(self, reason: JmsError) -> None:
        """The connection is gone: what is buffered is the broker's again."""
        with self._lock:
            self._loss = reason
            self._buffer.clear()
            self._lock.notify_all()

    def take(self, timeout: float) -> Received | None:
        """Return the next message; `None` when the time is up.

        Args:
            timeout: Seconds; 0 waits only for what the broker has put on the way already.

        Raises:
            ConnectionLostError: The connection is gone.
            ConfigurationError: The caller holds as many unsettled messages of a topic as the prefetch allows.
            CapabilityError: As `Connection.consume`.
        """
        if not self._buffer and self._unsettled >= self._room:
            self._subscribe_once_more()
        if not timeout and not self._buffer:
            self._connection.synchronize()
        deadline = time.monotonic() + (timeout or _ROUND_TRIP)
        found = self._wait(min(timeout or _ROUND_TRIP, _DOUBT))
        if found is None and self._in_doubt():
            self._doubted_at = self._unsettled
            self._subscribe_once_more()
            deadline = max(deadline, time.monotonic() + _ROUND_TRIP)
        if found is None:
            found = self._wait(deadline - time.monotonic())
        return found

    def settled(self, count: int) -> None:
        """So many messages that were taken are settled now."""
        with self._lock:
            self._unsettled -= count

    def recover(self) -> None:
        """Hand everything unsettled back, taken or not; it comes again in order.

        Raises:
            ConnectionLostError: The connection is gone.
        """
        with self._lock:
            self._unsettled = 0
        if len(self._consumers) == 1:
            self._consumers[0].recover()
            with self._lock:
                # One that is still on its way from before is recognised when it is its turn.
                self._buffer = deque(item for item in self._buffer if _current(item))
            return
        # Several consumers handing back one after the other would mix up the order.
        self.close()
        with self._lock:
            self._next_room, self._room = max(self._room, self._next_room), 0

    def close(self) -> None:
        """End the subscription; what is unsettled or unread goes back."""
        with self._lock:
            consumers, self._consumers = self._consumers, []
            self._buffer.clear()
        for consumer in consumers:
            consumer.close()

    def _wait(self, timeout: float) -> Received | None:
        with self._lock:
            self._lock.wait_for(lambda: self._has_current() or self._loss is not None, timeout)
            found = self._buffer.popleft() if self._has_current() else None
            if found is not None:
                self._unsettled += 1
            elif self._loss is not None:
                raise type(self._loss)(str(self._loss)) from self._loss
        return found

    def _in_doubt(self) -> bool:
        is_queue = self._subscription.destination.kind is DestinationKind.QUEUE
        return is_queue and self._unsettled > 0 and self._doubted_at != self._unsettled

    def _has_current(self) -> bool:
        while self._buffer and not _current(self._buffer[0]):
            self._buffer.popleft()
        return bool(self._buffer)

    def _subscribe_once_more(self) -> None:
        subscription = self._subscription
        if self._consumers and subscription.destination.kind is DestinationKind.TOPIC:
            raise ConfigurationError(
                f"{self._unsettled} messages of {subscription.destination} are unsettled, as many as the"
                " prefetch allows: settle them, or give the session a larger prefetch"
            )
        consumer = self._connection.consume(
            Subscription(
                destination=subscription.destination,
                selector=subscription.selector,
                durable_name=subscription.durable_name,
                prefetch=self._next_room,
            ),
            self._put,
        )
        with self._lock:
            self._consumers.append(consumer)
            self._room += self._next_room
            self._next_room = self._room

    def _put(self, received: Received) -> None:
        with self._lock:
            self._buffer.append(received)
            self._lock.notify_all()


def _current(received: Received) -> bool:
    return received.generation == received.consumer.generation
