"""Connections to the in-process broker."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import TypeAlias

from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.core.message import BodyKind, JmsMessage
from airflow_provider_jmsjca.core.selector import Selector
from airflow_provider_jmsjca.errors import (
    ConfigurationError,
    ConnectionLostError,
    JmsError,
    PermanentBrokerError,
)
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.transports.backlog import Backlog
from airflow_provider_jmsjca.transports.base import (
    BrokerInfo,
    Capabilities,
    ConnectionSettings,
    ConnectionState,
    OnLost,
    OnReceived,
    Outgoing,
    Received,
    Subscription,
)
from airflow_provider_jmsjca.transports.memory.administration import MemoryAdministration
from airflow_provider_jmsjca.transports.memory.broker import MemoryBroker
from airflow_provider_jmsjca.transports.memory.message_queue import START, MessageQueue, QueuedMessage

DEFAULT_PREFETCH = 100
Wants: TypeAlias = Callable[[JmsMessage], bool]


class MemoryDelivery:
    """One delivery of a message to a consumer; `Received.token` contains this object."""

    __slots__ = ("entry", "generation", "unit")

    def __init__(self, entry: QueuedMessage, generation: int) -> None:
        self.entry = entry
        self.generation = generation
        self.unit: object = None


class MemoryConsumer:
    """An active subscription; see `transports.base.Consumer`."""

    def __init__(
        self,
        connection: MemoryConnection,
        subscription: Subscription,
        on_received: OnReceived,
        *,
        matches: Wants,
        queue: MessageQueue,
    ) -> None:
        self.position = START
        self.generation = 0
        self._connection = connection
        self.subscription = subscription
        self._on_received = on_received
        self._matches = matches
        self._queue = queue
        self._prefetch = DEFAULT_PREFETCH if subscription.prefetch is None else subscription.prefetch
        self._unsettled: set[MemoryDelivery] = set()
        self._in_units = 0
        self._open = True

    @property
    def settles_in_order(self) -> bool:
        """False: each message is settled individually."""
        return False

    def unit(self, received: Received) -> MemoryUnitOfWork:
        """Open the unit of work of a message: a transaction of the connection."""
        del received
        return self._connection.unit()

    def acknowledge(self, received: Iterable[Received]) -> None:
        """Settle messages immediately; those handed back to the queue before are ignored."""
        with self._connection.guard():
            for item in received:
                self.settle(item)
            self._dispatch()

    def recover(self) -> None:
        """Hand every unsettled message back to the queue, including those in an open unit of work."""
        with self._connection.guard():
            if self._open:
                self._hand_back()
                self._dispatch()

    def close(self, *, delete_durable: bool = False) -> None:
        """End the subscription; unsettled messages return to the queue."""
        with self._connection.server.lock:
            if not self._open:
                return
            self.end()
            if delete_durable and self.subscription.durable_name is not None:
                self._connection.delete_durable(self.subscription.durable_name, self.subscription.destination)

    # --- For the queue ---------------------------------------------------------------------------------

    def has_credit(self) -> bool:
        """Whether the prefetch window has room; messages acknowledged in a unit of work don't count."""
        return len(self._unsettled) - self._in_units < self._prefetch

    def matches(self, message: JmsMessage) -> bool:
        """Whether the selector matches."""
        return self._matches(message)

    def take(self, entry: QueuedMessage) -> None:
        """Receive a message from the queue."""
        delivery = MemoryDelivery(entry, self.generation)
        self._unsettled.add(delivery)
        self._connection.callbacks.post(lambda: self._hand_over(delivery))

    # --- For the connection and its units, under the broker's lock ------------------------------------

    def enlist(self, received: Received, unit: object) -> bool:
        """Add a delivery to a unit of work; return `False` if it was handed back to the queue.

        Raises:
            ConfigurationError: The delivery is already part of a unit.
        """
        delivery = self._find(received)
        if delivery is None:
            return False
        if delivery.unit is not None:
            raise ConfigurationError("the message is part of a unit of work already")
        delivery.unit = unit
        self._in_units += 1
        self._dispatch()
        return True

    def release(self, received: Received) -> None:
        """Remove a delivery from its unit of work, so that it is unsettled again."""
        delivery = self._find(received)
        if delivery is not None and delivery.unit is not None:
            delivery.unit = None
            self._in_units -= 1

    def settle(self, received: Received) -> None:
        """Settle a message: remove it from the queue."""
        delivery = self._find(received)
        if delivery is None:
            return
        self._unsettled.remove(delivery)
        if delivery.unit is not None:
            self._in_units -= 1
        self._queue.remove(delivery.entry)

    def end(self) -> None:
        """Leave the queue, and hand unsettled messages back to it."""
        self._open = False
        self._connection.forget(self)
        self._queue.leave(self)
        self._hand_back()
        self._dispatch()
        destination = self.subscription.destination
        if destination.kind is DestinationKind.QUEUE:
            self._connection.server.forget_idle(destination.name)
        elif self.subscription.durable_name is None:
            self._connection.server.unlisten(destination.name, self._queue)

    def _find(self, received: Received) -> MemoryDelivery | None:
        token = received.token
        return token if isinstance(token, MemoryDelivery) and token in self._unsettled else None

    def _hand_back(self) -> None:
        self.generation += 1
        deliveries, self._unsettled = self._unsettled, set()
        self._in_units = 0
        for delivery in deliveries:
            self._queue.restore(delivery.entry)

    def _dispatch(self) -> None:
        self._queue.dispatch(self._connection.server.now_ms())

    def _hand_over(self, delivery: MemoryDelivery) -> None:
        with self._connection.server.lock:
            if delivery.generation != self.generation:
                return
            # A delivery counts only now, when the message is passed to the callback. Messages returned before
            # that were never seen by the application.
            redelivered = delivery.entry.deliveries > 0
            delivery.entry.deliveries += 1
            count = delivery.entry.deliveries
        message = delivery.entry.message
        received = Received(
            self,
            delivery,
            delivery.generation,
            lambda: replace(message, redelivered=redelivered, delivery_count=count),
        )
        self._on_received(received)


class MemoryUnitOfWork:
    """Sends and acknowledgements with an atomic commit; see `transports.base.UnitOfWork`."""

    def __init__(self, connection: MemoryConnection) -> None:
        self._connection = connection
        self._sends: list[Outgoing] = []
        self._received: list[tuple[MemoryConsumer, Received]] = []
        self._done = False

    def send(self, outgoing: Outgoing) -> None:
        """Add a message to this unit of work, whose commit sends the message.

        Raises:
            ConfigurationError: The destination has options for another broker.
        """
        with self._connection.guard():
            self._refuse_if_done()
            self._connection.server.check_options(outgoing.destination)
            self._sends.append(outgoing)

    def acknowledge(self, received: Received) -> None:
        """Add a received message to this unit of work, whose commit settles the message.

        A delivery that was handed back to the queue is ignored.
        """
        with self._connection.guard():
            self._refuse_if_done()
            consumer = received.consumer
            if isinstance(consumer, MemoryConsumer) and consumer.enlist(received, self):
                self._received.append((consumer, received))

    def commit(self, meanwhile: Callable[[], object] | None = None) -> None:
        """Send and settle all messages, or none."""
        del meanwhile  # there is nothing to wait for
        with self._connection.guard():
            self._refuse_if_done()
            try:
                for item in self._sends:
                    self._connection.server.check(item.destination)
            except JmsError:
                self.rollback()
                raise
            self._done = True
            for consumer, received in self._received:
                consumer.settle(received)
            self._connection.server.accept(self._sends)

    def rollback(self) -> None:
        """Discard the sends; acknowledged messages become unsettled again."""
        with self._connection.server.lock:
            self._refuse_if_done()
            self._done = True
            for consumer, received in self._received:
                consumer.release(received)

    def _refuse_if_done(self) -> None:
        if self._done:
            raise PermanentBrokerError("this unit of work has been committed or rolled back already")


_log = safe_logger(__name__)
_IDLE_SECONDS = 5.0


class CallbackThread:
    """Runs callbacks sequentially in posting order, in a separate thread.

    Args:
        name: The name of the thread.
        on_failure: Called with the exception that a callback raised.
    """

    def __init__(self, name: str, on_failure: Callable[[Exception], None]) -> None:
        self._name = name
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._pending: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stopped = False

    def post(self, callback: Callable[[], None]) -> None:
        """Queue a callback; after `stop`, drop it."""
        with self._lock:
            if self._stopped:
                return
            self._pending.put(callback)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def stop(self, timeout: float) -> None:
        """Drop pending callbacks, and wait until the running callback has ended.

        A call from within a callback returns without waiting.

        Args:
            timeout: Maximum wait in seconds.
        """
        with self._lock:
            self._stopped = True
            thread = self._thread
            self._pending.put(_nothing)
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def _run(self) -> None:
        while True:
            try:
                callback = self._pending.get(timeout=_IDLE_SECONDS)
            except Empty:
                with self._lock:
                    if self._pending.empty():
                        self._thread = None
                        return
                continue
            if self._stopped:
                return
            try:
                callback()
            except Exception as error:  # noqa: BLE001  # outermost edge of the thread, logged
                _log.exception("A callback of %s raised", self._name)
                self._on_failure(error)


def _nothing() -> None:
    """Do nothing: posted as a callback, this wakes the thread."""


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
    unit_frees_prefetch=True,
    priority=True,
    message_groups=True,
    body_kinds=frozenset(BodyKind),
)


def _matches(selector: str | None) -> Wants:
    return Selector.parse(selector or "").matches


class MemoryConnection:
    """A connection to an in-process broker; see `transports.base.Connection`."""

    def __init__(self, server: MemoryBroker, settings: ConnectionSettings) -> None:
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
        """The in-process broker."""
        return BrokerInfo(product="memory", version="", address=self.server.name)

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the in-process broker."""
        return CAPABILITIES

    @property
    def state(self) -> ConnectionState:
        """State of the connection."""
        return self._state

    @property
    def secrets(self) -> tuple[str, ...]:
        """Credentials of the connection."""
        return self._settings.secrets

    def guard(self) -> _Guard:
        """Return a context that holds the broker's lock and refuses a connection that is not up."""
        return _Guard(self)

    def on_lost(self, callback: OnLost) -> None:
        """Call `callback` once when the connection is lost, but not when it is closed.

        If the connection is already lost, the call follows at once.
        """
        with self.server.lock:
            if self._loss is not None:
                self._call_on_lost(callback, self._loss)
            else:
                self._on_lost.append(callback)

    def call_soon(self, function: Callable[[], None]) -> None:
        """Call `function` on the thread that calls `on_received`, after the messages that wait there."""
        self.callbacks.post(function)

    def consume(self, subscription: Subscription, on_received: OnReceived) -> MemoryConsumer:
        """Subscribe, and return the consumer; see `Connection.consume`."""
        if subscription.prefetch is not None and subscription.prefetch < 1:
            raise ConfigurationError(f"prefetch is {subscription.prefetch}; it must be at least 1")
        matches = _matches(subscription.selector)
        with self.guard():
            self.server.check(subscription.destination)
            queue = self._queue_for(subscription, matches)
            consumer = MemoryConsumer(self, subscription, on_received, matches=matches, queue=queue)
            self._consumers.append(consumer)
            queue.join(consumer)
            queue.dispatch(self.server.now_ms())
            return consumer

    def send(self, outgoing: Iterable[Outgoing]) -> int:
        """Send messages one by one; if one is refused, the messages before it are delivered."""
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
        """Yield the messages of a queue, except in-flight ones."""
        if destination.kind is not DestinationKind.QUEUE:
            raise ConfigurationError(f"only a queue can be browsed, not {destination}")
        matches = _matches(selector)
        with self.guard():
            self.server.check(destination)
            entries = self.server.queue(destination.name).entries(self.server.now_ms())
            found = [
                replace(entry.message, redelivered=entry.deliveries > 0)
                for entry in entries
                if entry.ready and matches(entry.message)
            ]
            self.server.forget_idle(destination.name)
        return iter(found)

    def first_messages(
        self, queues: Sequence[tuple[Destination, str | None]]
    ) -> list[JmsMessage | JmsError | None]:
        """Return the first message of each of several queues, without consuming it."""
        found: list[JmsMessage | JmsError | None] = []
        for queue, selector in queues:
            try:
                found.append(next(self.browse(queue, selector), None))
            except JmsError as error:
                found.append(error)
        return found

    def backlog(self, queue: Destination) -> Backlog:
        """Return the backlog of a queue."""
        with self.guard():
            messages = self.server.queue(queue.name)
            entries = messages.entries(self.server.now_ms())
            taken = [entry.message.message_id for entry in entries if not entry.ready]
            consumers = messages.consumer_count
            self.server.forget_idle(queue.name)
        return Backlog(
            waiting=len(entries) - len(taken),
            taken=len(taken),
            consumers=consumers,
            taken_ids=frozenset(name for name in taken if name is not None),
        )

    def administration(self) -> MemoryAdministration:
        """Return the administration of this broker's queues."""
        return MemoryAdministration(self, self.server)

    def synchronize(self) -> None:
        """Raise if the connection is not up; there is nothing to wait for."""
        with self.guard():
            return

    def delete_durable(self, name: str, destination: Destination) -> None:
        """Delete an idle durable subscription and its messages."""
        with self.guard():
            self.server.delete_durable((self._client_id_for(name, destination), name))

    def close(self) -> None:
        """Close; unsettled messages return to their queues."""
        with self.server.lock:
            if self._state is ConnectionState.UP:
                self.server.detach(self)
                self._end_consumers()
                self._state = ConnectionState.CLOSED
        self.callbacks.stop(self._settings.reply_timeout.total_seconds())

    def connection_lost(self, reason: ConnectionLostError) -> None:
        """Handle the loss of the connection; the caller holds the broker's lock."""
        self._state = ConnectionState.LOST
        self._loss = reason
        self._end_consumers()
        told, self._on_lost = self._on_lost, []
        for callback in told:
            self._call_on_lost(callback, reason)

    def _give_up(self, error: Exception) -> None:
        """End the connection after a callback failed, so that all unsettled messages are redelivered."""
        with self.server.lock:
            if self._state is ConnectionState.UP:
                self.server.detach(self)
                self.connection_lost(
                    ConnectionLostError(f"a callback failed: {type(error).__name__}: {error}")
                )

    def refuse_unless_up(self) -> None:
        """Raise `ConnectionLostError` if the connection is lost or closed."""
        if self._loss is not None:
            raise ConnectionLostError(str(self._loss))
        if self._state is not ConnectionState.UP:
            raise ConnectionLostError(f"the connection to vm://{self.server.name} is closed")

    def forget(self, consumer: MemoryConsumer) -> None:
        """Remove a consumer that has ended."""
        if consumer in self._consumers:
            self._consumers.remove(consumer)

    def _call_on_lost(self, callback: OnLost, reason: ConnectionLostError) -> None:
        self.callbacks.post(lambda: callback(reason))

    def _end_consumers(self) -> None:
        for consumer in self._consumers[:]:
            consumer.end()

    def _queue_for(self, subscription: Subscription, matches: Wants) -> MessageQueue:
        destination, durable_name = subscription.destination, subscription.durable_name
        if durable_name is not None:
            key = (self._client_id_for(durable_name, destination), durable_name)
            return self.server.durable(key, destination.name, subscription.selector, matches)
        if destination.kind is DestinationKind.QUEUE:
            return self.server.queue(destination.name)
        return self.server.listen(destination.name, matches)

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
    """Context manager that holds the broker's lock; it refuses a connection that is not up."""

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
