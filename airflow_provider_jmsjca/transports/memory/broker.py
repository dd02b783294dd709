"""The in-process broker behind `vm://name`, and its methods for tests to inspect and crash it."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from types import MappingProxyType
from typing import Protocol

from airflow_provider_jmsjca.core.configuration.destination_options import broker_options
from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.errors import (
    AuthenticationError,
    ClientIdInUseError,
    ConfigurationError,
    ConnectionLostError,
    PermanentBrokerError,
    TransientBrokerError,
)
from airflow_provider_jmsjca.transports.base import Outgoing
from airflow_provider_jmsjca.transports.memory.message_queue import MessageQueue, QueuedMessage

REMEMBERED_DEDUPLICATION_IDS = 20_000


class Client(Protocol):
    """The broker's view of a connection."""

    @property
    def client_id(self) -> str | None:
        """The client's JMS client id."""

    def connection_lost(self, reason: ConnectionLostError) -> None:
        """Handle the loss of the connection."""


@dataclass(slots=True)
class DurableSubscription:
    """A named subscription to a topic, with the messages that arrived while its subscriber was offline."""

    topic: str
    selector: str | None
    matches: Callable[[JmsMessage], bool]
    messages: MessageQueue


class MemoryBroker:
    """A named broker of this process.

    All state is in memory. Public methods let tests inspect messages and provoke faults. All methods are
    thread-safe.

    Args:
        name: The host part of `vm://name`.
        clock: Returns seconds since the epoch.
    """

    def __init__(self, name: str, clock: Callable[[], float] = time.time) -> None:
        self.name = name
        self.lock = threading.RLock()
        self._clock = clock
        self._advanced = 0.0
        self._up = True
        # Message ids are remembered outside this process, so they must never repeat.
        self._id_prefix = f"ID:vm-{name}-{uuid.uuid4().hex}-"
        self._sequence = itertools.count(1)
        self._logins: dict[str, str] = {}
        self._forbidden: set[Destination] = set()
        self._clients: list[Client] = []
        self._queues: dict[str, MessageQueue] = {}
        self._durable: dict[tuple[str, str], DurableSubscription] = {}
        self._listeners: dict[str, list[tuple[Callable[[JmsMessage], bool], MessageQueue]]] = {}
        self._seen: OrderedDict[tuple[Destination, str], None] = OrderedDict()
        self._delayed: list[tuple[float, int, Outgoing]] = []
        self._timer: threading.Thread | None = None
        self._timer_wake = threading.Condition(self.lock)

    # --- For tests -------------------------------------------------------------------------------------

    def depth(self, queue: str) -> int:
        """Return the number of messages on a queue, including unsettled and excluding delayed ones."""
        return len(self.messages(queue))

    def messages(self, queue: str) -> list[JmsMessage]:
        """Return the messages of a queue in order, including unsettled and excluding delayed ones."""
        with self.lock:
            found = self._queues.get(queue)
            return [] if found is None else [entry.message for entry in found.entries(self.now_ms())]

    def delayed(self) -> list[JmsMessage]:
        """Return the delayed messages, ordered by delivery time."""
        with self.lock:
            return [item[2].message for item in sorted(self._delayed, key=lambda item: item[:2])]

    @property
    def connections(self) -> int:
        """Number of open connections."""
        with self.lock:
            return len(self._clients)

    def require_login(self, username: str, password: str) -> None:
        """Accept only this user and the users of earlier calls."""
        with self.lock:
            self._logins[username] = password

    def forbid(self, destination: Destination) -> None:
        """Refuse sending to a destination and receiving from it, like a broker without the permission."""
        with self.lock:
            self._forbidden.add(destination)

    def permit(self, destination: Destination) -> None:
        """Undo `forbid`."""
        with self.lock:
            self._forbidden.discard(destination)

    def advance(self, by: timedelta) -> None:
        """Advance the broker's clock: delays end, messages expire."""
        with self.lock:
            self._advanced += by.total_seconds()
            self._release_due()

    def kill(self) -> None:
        """Crash: all connections and non-persistent messages are lost, and new connections are refused."""
        with self.lock:
            self._up = False
            lost, self._clients = self._clients, []
            for client in lost:
                client.connection_lost(
                    ConnectionLostError(f"the connection to vm://{self.name} is gone: broker killed")
                )
            self._listeners.clear()
            for held in (*self._queues.values(), *(item.messages for item in self._durable.values())):
                held.drop_non_persistent()
            self._delayed = [item for item in self._delayed if item[2].message.persistent]
            heapq.heapify(self._delayed)

    def restart(self) -> None:
        """Crash if up, then accept connections again."""
        with self.lock:
            if self._up:
                self.kill()
            self._up = True

    def clear(self) -> None:
        """Delete messages, idle durable subscriptions, deduplication ids, logins and prohibitions.

        The messages of non-durable topic subscriptions stay.
        """
        with self.lock:
            for held in self._queues.values():
                held.clear()
            for key, durable in list(self._durable.items()):
                durable.messages.clear()
                if not durable.messages.has_consumer:
                    del self._durable[key]
            self._delayed.clear()
            self._seen.clear()
            self._logins.clear()
            self._forbidden.clear()

    # --- For connections -------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """Return the broker's time, milliseconds since the epoch."""
        return int((self._clock() + self._advanced) * 1000)

    def attach(self, client: Client, username: str | None, password: str | None) -> None:
        """Accept a connection.

        Raises:
            TransientBrokerError: The broker is down.
            ClientIdInUseError: Another connection has the client id.
            AuthenticationError: The credentials are wrong.
        """
        with self.lock:
            if not self._up:
                raise TransientBrokerError(f"vm://{self.name} is down")
            if self._logins and (username is None or self._logins.get(username) != password):
                raise AuthenticationError(f"vm://{self.name} refuses user {username!r}")
            taken = {item.client_id for item in self._clients} - {None}
            if client.client_id in taken:
                raise ClientIdInUseError(f"vm://{self.name}: client id {client.client_id!r} is in use")
            self._clients.append(client)

    def detach(self, client: Client) -> None:
        """Remove a connection."""
        with self.lock:
            if client in self._clients:
                self._clients.remove(client)

    def check(self, destination: Destination) -> None:
        """Refuse a forbidden destination, or one with unsupported options.

        Raises:
            ConfigurationError: See `check_options`.
            PermanentBrokerError: The destination is forbidden.
        """
        self.check_options(destination)
        if destination in self._forbidden:
            raise PermanentBrokerError(f"vm://{self.name} refuses access to {destination}")

    def check_options(self, destination: Destination) -> None:
        """Refuse unsupported options of a destination.

        Raises:
            ConfigurationError: The destination has broker options; `vm://` supports none. Source: J91.
        """
        if unknown := destination.options and broker_options(destination):
            raise ConfigurationError(
                f"destination {destination}: {key} is not an option of a destination on vm://, "
                "expected prefetch "
                "or none"
                for key in unknown
            )

    def accept(self, outgoing: Iterable[Outgoing]) -> None:
        """Accept messages atomically. The caller must have checked their destinations with `check`."""
        with self.lock:
            touched: dict[int, MessageQueue] = {}
            for item in outgoing:
                if self._is_duplicate(item):
                    continue
                stamped = replace(item, message=self._stamp(item))
                if item.delay is not None and item.delay > timedelta(0):
                    self._hold(stamped, item.delay)
                else:
                    for queue in self._route(stamped):
                        touched[id(queue)] = queue
            now_ms = self.now_ms()
            for queue in touched.values():
                queue.dispatch(now_ms)

    def queue(self, name: str) -> MessageQueue:
        """Return a queue; create it on first use."""
        return self._queues.setdefault(name, MessageQueue())

    def queue_names(self) -> list[str]:
        """Return the names of all queues, sorted."""
        return sorted(self._queues)

    def forget_idle(self, name: str) -> None:
        """Delete a queue if it has neither messages nor consumers."""
        if name in self._queues and self._queues[name].idle:
            del self._queues[name]

    def listen(self, topic: str, matches: Callable[[JmsMessage], bool]) -> MessageQueue:
        """Begin a non-durable subscription, and return the queue that will hold its messages."""
        messages = MessageQueue()
        self._listeners.setdefault(topic, []).append((matches, messages))
        return messages

    def unlisten(self, topic: str, messages: MessageQueue) -> None:
        """End a non-durable subscription."""
        rest = [item for item in self._listeners.get(topic, []) if item[1] is not messages]
        if rest:
            self._listeners[topic] = rest
        else:
            self._listeners.pop(topic, None)

    def durable(
        self, key: tuple[str, str], topic: str, selector: str | None, matches: Callable[[JmsMessage], bool]
    ) -> MessageQueue:
        """Return the queue with the messages of a durable subscription; create the subscription if needed.

        If the subscription exists with another topic or selector, a new one replaces it. Messages of the
        replaced subscription are deleted.

        Args:
            key: Client id and subscription name.
            topic: Name of the topic.
            selector: The selector, to be compared with that of an existing subscription.
            matches: Returns whether a message matches the selector.

        Source: JMS 2.0 section 8.3.3.

        Raises:
            PermanentBrokerError: The subscription has an active subscriber.
        """
        found = self._durable.get(key)
        if found is not None and found.messages.has_consumer:
            raise PermanentBrokerError(f"vm://{self.name}: durable subscription {key[1]!r} is in use")
        if found is None or (found.topic, found.selector) != (topic, selector):
            found = self._durable[key] = DurableSubscription(topic, selector, matches, MessageQueue())
        return found.messages

    def delete_durable(self, key: tuple[str, str]) -> None:
        """Delete a durable subscription, if it exists.

        Raises:
            PermanentBrokerError: The subscription has a subscriber.
        """
        with self.lock:
            found = self._durable.get(key)
            if found is not None and found.messages.has_consumer:
                raise PermanentBrokerError(f"vm://{self.name}: durable subscription {key[1]!r} is in use")
            self._durable.pop(key, None)

    # --- Inside ----------------------------------------------------------------------------------------

    def _is_duplicate(self, item: Outgoing) -> bool:
        if item.deduplication_id is None:
            return False
        key = (item.destination, item.deduplication_id)
        if key in self._seen:
            return True
        self._seen[key] = None
        if len(self._seen) > REMEMBERED_DEDUPLICATION_IDS:
            self._seen.popitem(last=False)
        return False

    def _stamp(self, item: Outgoing) -> JmsMessage:
        message = item.message
        body = message.body
        # Dictionaries and lists are copied, because the sender may change them later.
        if isinstance(body, Mapping):
            body = MappingProxyType(dict(body))
        elif isinstance(body, list):
            body = tuple(body)
        return replace(
            message,
            body=body,
            properties=MappingProxyType(dict(message.properties)),
            message_id=f"{self._id_prefix}{next(self._sequence)}",
            destination=item.destination,
            timestamp=self.now_ms(),
            redelivered=False,
            delivery_count=None,
        )

    def _route(self, item: Outgoing) -> list[MessageQueue]:
        name = item.destination.name
        if item.destination.kind is DestinationKind.QUEUE:
            targets = [self.queue(name)]
        else:
            targets = [queue for matches, queue in self._listeners.get(name, []) if matches(item.message)]
            targets += [
                held.messages
                for held in self._durable.values()
                if held.topic == name and held.matches(item.message)
            ]
        for queue in targets:
            queue.add(QueuedMessage(item.message, next(self._sequence)))
        return targets

    def _hold(self, item: Outgoing, delay: timedelta) -> None:
        due = self._clock() + self._advanced + delay.total_seconds()
        heapq.heappush(self._delayed, (due, next(self._sequence), item))
        if self._timer is None:
            self._timer = threading.Thread(target=self._tick, name=f"vm-{self.name}-timer", daemon=True)
            self._timer.start()
        self._timer_wake.notify_all()

    def _release_due(self) -> None:
        now = self._clock() + self._advanced
        while self._delayed and self._delayed[0][0] <= now:
            _, _, item = heapq.heappop(self._delayed)
            for queue in self._route(item):
                queue.dispatch(self.now_ms())
        self._timer_wake.notify_all()

    def _tick(self) -> None:
        # Runs only while messages are delayed: an idle broker needs no thread.
        with self.lock:
            while self._delayed:
                remaining = self._delayed[0][0] - self._clock() - self._advanced
                if remaining > 0:
                    self._timer_wake.wait(remaining)
                self._release_due()
            self._timer = None


_brokers: dict[str, MemoryBroker] = {}
_brokers_lock = threading.Lock()


def memory_broker(name: str) -> MemoryBroker:
    """Return the broker `vm://name` of this process; create it on first use."""
    with _brokers_lock:
        found = _brokers.get(name)
        if found is None:
            found = _brokers[name] = MemoryBroker(name)
        return found
