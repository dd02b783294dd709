"""Consumers of the in-process broker."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from airflow_provider_jmsjca.core.destination import DestinationKind
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.transports.base import OnReceived, Received, Subscription
from airflow_provider_jmsjca.transports.memory.message_queue import START, Entry, MessageQueue

if TYPE_CHECKING:
    from airflow_provider_jmsjca.transports.memory.connection import MemoryConnection

DEFAULT_PREFETCH = 100
Wants: TypeAlias = Callable[[JmsMessage], bool]


class Delivery:
    """One hand-over of one message to one consumer: the token of a `Received`."""

    __slots__ = ("entry", "generation", "unit")

    def __init__(self, entry: Entry, generation: int) -> None:
        self.entry = entry
        self.generation = generation
        self.unit: object = None


class MemoryConsumer:
    """A subscription in force; see `transports.base.Consumer`."""

    def __init__(
        self,
        connection: MemoryConnection,
        subscription: Subscription,
        on_received: OnReceived,
        *,
        wants: Wants,
        queue: MessageQueue,
    ) -> None:
        self.position = START
        self.generation = 0
        self._connection = connection
        self._subscription = subscription
        self._on_received = on_received
        self._wants = wants
        self._queue = queue
        self._prefetch = DEFAULT_PREFETCH if subscription.prefetch is None else subscription.prefetch
        self._unsettled: set[Delivery] = set()
        self._in_units = 0
        self._open = True

    @property
    def subscription(self) -> Subscription:
        """What it receives."""
        return self._subscription

    @property
    def settles_in_order(self) -> bool:
        """Each message is settled by itself."""
        return False

    def acknowledge(self, received: Iterable[Received]) -> None:
        """Settle at once; stale ones are ignored."""
        with self._connection.guard():
            for item in received:
                self.settle(item)
            self._dispatch()

    def recover(self) -> None:
        """Hand every unsettled message back, those in an open unit of work too."""
        with self._connection.guard():
            if self._open:
                self._hand_back()
                self._dispatch()

    def close(self, *, delete_durable: bool = False) -> None:
        """End the subscription; unsettled messages go back."""
        with self._connection.server.lock:
            if not self._open:
                return
            self.end()
            if delete_durable and self._subscription.durable_name is not None:
                self._connection.delete_durable(
                    self._subscription.durable_name, self._subscription.destination
                )

    # --- For the queue ---------------------------------------------------------------------------------

    def has_credit(self) -> bool:
        """Whether the prefetch window has room; what a unit of work has acknowledged takes none."""
        return len(self._unsettled) - self._in_units < self._prefetch

    def wants(self, message: JmsMessage) -> bool:
        """Whether the selector matches."""
        return self._wants(message)

    def take(self, entry: Entry) -> None:
        """Receive a message from the queue."""
        delivery = Delivery(entry, self.generation)
        self._unsettled.add(delivery)
        self._connection.callbacks.post(lambda: self._hand_over(delivery))

    # --- For the connection and its units, under the broker's lock ------------------------------------

    def enlist(self, received: Received, unit: object) -> bool:
        """Let a unit of work have a delivery; `False` if it is stale.

        Raises:
            ConfigurationError: A unit has it already.
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
        """Take a delivery out of its unit of work: it is unsettled again."""
        delivery = self._find(received)
        if delivery is not None and delivery.unit is not None:
            delivery.unit = None
            self._in_units -= 1

    def settle(self, received: Received) -> None:
        """Forget a message that was dealt with."""
        delivery = self._find(received)
        if delivery is None:
            return
        self._unsettled.remove(delivery)
        if delivery.unit is not None:
            self._in_units -= 1
        self._queue.remove(delivery.entry)

    def end(self) -> None:
        """Leave the queue and give back what is unsettled."""
        self._open = False
        self._connection.forget(self)
        self._queue.leave(self)
        self._hand_back()
        self._dispatch()
        destination = self._subscription.destination
        if destination.kind is DestinationKind.QUEUE:
            self._connection.server.forget_idle(destination.name)
        elif self._subscription.durable_name is None:
            self._connection.server.unlisten(destination.name, self._queue)

    def _find(self, received: Received) -> Delivery | None:
        token = received.token
        return token if isinstance(token, Delivery) and token in self._unsettled else None

    def _hand_back(self) -> None:
        self.generation += 1
        deliveries, self._unsettled = self._unsettled, set()
        self._in_units = 0
        for delivery in deliveries:
            self._queue.restore(delivery.entry)

    def _dispatch(self) -> None:
        self._queue.dispatch(self._connection.server.now_ms())

    def _hand_over(self, delivery: Delivery) -> None:
        with self._connection.server.lock:
            if delivery.generation != self.generation:
                return
            # Only what the callback gets counts as delivered: the rest has left no trace anywhere.
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
