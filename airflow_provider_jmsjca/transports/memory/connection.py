"""Connections to the in-process broker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.core.message import BodyKind, JmsMessage
from airflow_provider_jmsjca.core.selector import Selector
from airflow_provider_jmsjca.errors import ConfigurationError, ConnectionLostError
from airflow_provider_jmsjca.transports.backlog import Backlog
from airflow_provider_jmsjca.transports.base import (
    BrokerInfo,
    Capabilities,
    ConnectionSettings,
    ConnectionState,
    OnLost,
    OnReceived,
    Outgoing,
    Subscription,
)
from airflow_provider_jmsjca.transports.memory.broker import Broker
from airflow_provider_jmsjca.transports.memory.callbacks import CallbackThread
from airflow_provider_jmsjca.transports.memory.consumer import MemoryConsumer, Wants
from airflow_provider_jmsjca.transports.memory.message_queue import MessageQueue
from airflow_provider_jmsjca.transports.memory.unit import MemoryUnitOfWork

CAPABILITIES = Capabilities(
    atomic_commit=True,
    deduplicating_send=True,
    delivery_count=True,
    redelivered_flag=True,
    stable_message_id=True,
    selector=True,
    browse=True,
    backlog=True,
    durable_subscription=True,
    delayed_delivery=True,
    typed_properties=True,
    priority=True,
    message_groups=True,
    body_kinds=frozenset(BodyKind),
)


def _wants(selector: str | None) -> Wants:
    return Selector.parse(selector or "").matches


class MemoryConnection:
    """A connection to a broker of this process; see `transports.base.Connection`."""

    def __init__(self, server: Broker, settings: ConnectionSettings) -> None:
        self.server = server
        self.callbacks = CallbackThread(f"vm-{server.name}", self._give_up)
        self._settings = settings
        self._state = ConnectionState.UP
        self._loss: ConnectionLostError | None = None
        self._on_lost: list[OnLost] = []
        self._consumers: list[MemoryConsumer] = []
        server.attach(self, settings.username, settings.password)

    @property
    def client_id(self) -> str | None:
        """The JMS client id."""
        return self._settings.client_id

    @property
    def broker(self) -> BrokerInfo:
        """Which broker it is."""
        return BrokerInfo(product="memory", version="", address=self.server.name)

    @property
    def capabilities(self) -> Capabilities:
        """All of them."""
        return CAPABILITIES

    @property
    def state(self) -> ConnectionState:
        """Where in its life it is."""
        return self._state

    def guard(self) -> _Guard:
        """Return a context that holds the broker's lock and refuses a connection that is not up."""
        return _Guard(self)

    def on_lost(self, callback: OnLost) -> None:
        """Call back once if the broker is killed."""
        with self.server.lock:
            if self._loss is not None:
                self._tell(callback, self._loss)
            else:
                self._on_lost.append(callback)

    def call_soon(self, function: Callable[[], None]) -> None:
        """Call back at once: messages come one by one."""
        function()

    def consume(self, subscription: Subscription, on_received: OnReceived) -> MemoryConsumer:
        """Start receiving."""
        if subscription.prefetch is not None and subscription.prefetch < 1:
            raise ConfigurationError(f"prefetch is {subscription.prefetch}; it must be at least 1")
        wants = _wants(subscription.selector)
        with self.guard():
            self.server.check(subscription.destination)
            queue = self._queue_for(subscription, wants)
            consumer = MemoryConsumer(self, subscription, on_received, wants=wants, queue=queue)
            self._consumers.append(consumer)
            queue.join(consumer)
            queue.dispatch(self.server.now_ms())
            return consumer

    def send(self, outgoing: Iterable[Outgoing]) -> int:
        """Send messages; those before a refused one are there."""
        count = 0
        for item in outgoing:
            with self.guard():
                self.server.check(item.destination)
                self.server.accept([item])
            count += 1
        return count

    def unit(self) -> MemoryUnitOfWork:
        """Begin a unit of work."""
        return MemoryUnitOfWork(self)

    def browse(self, destination: Destination, selector: str | None = None) -> Iterator[JmsMessage]:
        """Yield the messages of a queue that no consumer has."""
        if destination.kind is not DestinationKind.QUEUE:
            raise ConfigurationError(f"only a queue can be browsed, not {destination}")
        wants = _wants(selector)
        with self.guard():
            self.server.check(destination)
            entries = self.server.queue(destination.name).entries(self.server.now_ms())
            found = [
                replace(entry.message, redelivered=entry.deliveries > 0)
                for entry in entries
                if entry.ready and wants(entry.message)
            ]
            self.server.forget_idle(destination.name)
        return iter(found)

    def backlog(self, queue: Destination) -> Backlog:
        """Count what a queue holds."""
        with self.guard():
            messages = self.server.queue(queue.name)
            entries = messages.entries(self.server.now_ms())
            taken = [entry.message.message_id for entry in entries if not entry.ready]
            consumers = messages.takers
            self.server.forget_idle(queue.name)
        return Backlog(
            waiting=len(entries) - len(taken),
            taken=len(taken),
            consumers=consumers,
            taken_ids=frozenset(name for name in taken if name is not None),
        )

    def synchronize(self) -> None:
        """Nothing is ever pending; only a lost connection is refused."""
        with self.guard():
            return

    def delete_durable(self, name: str, destination: Destination) -> None:
        """Delete an idle durable subscription and the messages it holds."""
        with self.guard():
            self.server.delete_durable((self._client_id_for(name, destination), name))

    def close(self) -> None:
        """Close; unsettled messages go back."""
        with self.server.lock:
            if self._state is ConnectionState.UP:
                self.server.detach(self)
                self._end_consumers()
                self._state = ConnectionState.CLOSED
        self.callbacks.stop(self._settings.reply_timeout.total_seconds())

    def lose(self, reason: ConnectionLostError) -> None:
        """The broker is gone; called by it, under its lock."""
        self._state = ConnectionState.LOST
        self._loss = reason
        self._end_consumers()
        told, self._on_lost = self._on_lost, []
        for callback in told:
            self._tell(callback, reason)

    def _give_up(self, error: Exception) -> None:
        """A callback failed: what it was given, and all else that is unsettled, comes again."""
        with self.server.lock:
            if self._state is ConnectionState.UP:
                self.server.detach(self)
                self.lose(ConnectionLostError(f"a callback failed: {type(error).__name__}: {error}"))

    def refuse_unless_up(self) -> None:
        """Raise if nothing can be asked of the broker any more."""
        if self._loss is not None:
            raise ConnectionLostError(str(self._loss))
        if self._state is not ConnectionState.UP:
            raise ConnectionLostError(f"the connection to vm://{self.server.name} is closed")

    def forget(self, consumer: MemoryConsumer) -> None:
        """A consumer has ended."""
        if consumer in self._consumers:
            self._consumers.remove(consumer)

    def _tell(self, callback: OnLost, reason: ConnectionLostError) -> None:
        self.callbacks.post(lambda: callback(reason))

    def _end_consumers(self) -> None:
        for consumer in self._consumers[:]:
            consumer.end()

    def _queue_for(self, subscription: Subscription, wants: Wants) -> MessageQueue:
        destination, durable_name = subscription.destination, subscription.durable_name
        if durable_name is not None:
            key = (self._client_id_for(durable_name, destination), durable_name)
            return self.server.durable(key, destination.name, subscription.selector, wants)
        if destination.kind is DestinationKind.QUEUE:
            return self.server.queue(destination.name)
        return self.server.listen(destination.name, wants)

    def _client_id_for(self, durable_name: str, destination: Destination) -> str:
        faults = []
        if destination.kind is not DestinationKind.TOPIC:
            faults.append(f"a durable subscription ({durable_name!r}) is for topics, not for {destination}")
        if self.client_id is None:
            faults.append(f"the durable subscription {durable_name!r} needs a connection with a client id")
        if faults:
            raise ConfigurationError(faults)
        return str(self.client_id)


class _Guard:
    """The broker's lock, held only while the connection is up."""

    __slots__ = ("_connection",)

    def __init__(self, connection: MemoryConnection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.server.lock.acquire()
        try:
            self._connection.refuse_unless_up()
        except ConnectionLostError:
            self._connection.server.lock.release()
            raise

    def __exit__(self, *_exc_info: object) -> None:
        self._connection.server.lock.release()
