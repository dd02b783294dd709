"""Connections for the unit tests of the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.errors import JmsError, PermanentBrokerError
from airflow_provider_jmsjca.transports.backlog import Backlog
from airflow_provider_jmsjca.transports.base import (
    BrokerInfo,
    Capabilities,
    Connection,
    ConnectionSettings,
    ConnectionState,
    Consumer,
    OnLost,
    OnReceived,
    Outgoing,
    Received,
    Subscription,
    UnitOfWork,
)
from airflow_provider_jmsjca.transports.memory import MemoryBroker as Broker
from airflow_provider_jmsjca.transports.memory.connection import MemoryConnection, MemoryConsumer


def settings(name: str, client_id: str | None = None) -> ConnectionSettings:
    return ConnectionSettings(scheme="vm", hosts=((name, None),), client_id=client_id)


class LesserConnection:
    """A connection to the in-process broker that can do less.

    Args:
        server: The broker.
        capabilities: What it admits to.
    """

    def __init__(
        self,
        server: Broker,
        capabilities: Capabilities | None = None,
        client_id: str | None = None,
    ) -> None:
        self._inner: Connection = MemoryConnection(server, settings(server.name, client_id))
        self._capabilities = capabilities or self._inner.capabilities
        self.subscribed: list[Subscription] = []
        self.consumers: list[Consumer] = []
        self.synchronized = 0

    @property
    def broker(self) -> BrokerInfo:
        return self._inner.broker

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def state(self) -> ConnectionState:
        return self._inner.state

    @property
    def secrets(self) -> tuple[str, ...]:
        return self._inner.secrets

    def on_lost(self, callback: OnLost) -> None:
        self._inner.on_lost(callback)

    def call_soon(self, function: Callable[[], None]) -> None:
        self._inner.call_soon(function)

    def consume(self, subscription: Subscription, on_received: OnReceived) -> Consumer:
        self.subscribed.append(subscription)
        consumer = self._inner.consume(subscription, on_received)
        consumer.unit = lambda _: self.unit()  # type: ignore[method-assign]  # a message opens its unit
        self.consumers.append(consumer)
        return consumer

    def send(self, outgoing: Iterable[Outgoing]) -> int:
        return self._inner.send(outgoing)

    def unit(self) -> UnitOfWork:
        return self._inner.unit()

    def browse(self, destination: Destination, selector: str | None = None) -> Iterator[JmsMessage]:
        return self._inner.browse(destination, selector)

    def first_messages(
        self, queues: Sequence[tuple[Destination, str | None]]
    ) -> list[JmsMessage | JmsError | None]:
        return self._inner.first_messages(queues)

    def backlog(self, queue: Destination) -> Backlog:
        return self._inner.backlog(queue)

    def synchronize(self) -> None:
        self.synchronized += 1
        self._inner.synchronize()

    def delete_durable(self, name: str, destination: Destination) -> None:
        self._inner.delete_durable(name, destination)

    def close(self) -> None:
        self._inner.close()


class SessionUnit:
    """A transaction of the JMS session that received a message: it settles that message alone.

    Other messages join it by transactions of their own sessions, which are committed after it.

    Args:
        begin: Begins a transaction.
        opener: The message; `None`: it sends only.
        alone: Refuse other messages.
    """

    def __init__(
        self, begin: Callable[[], UnitOfWork], opener: Received | None = None, *, alone: bool = False
    ) -> None:
        self._begin, self._opener, self._alone = begin, opener, alone
        self._own = begin()
        self._others: list[UnitOfWork] = []

    def send(self, outgoing: Outgoing) -> None:
        self._own.send(outgoing)

    def acknowledge(self, received: Received) -> None:
        if received is self._opener:
            self._own.acknowledge(received)
            return
        assert not self._alone, "a message is settled outside of the session that received it"
        other = self._begin()
        other.acknowledge(received)
        self._others.append(other)

    def commit(self, meanwhile: Callable[[], object] | None = None) -> None:
        try:
            self._own.commit(meanwhile)
        except PermanentBrokerError:
            for other in self._others:
                other.rollback()
            raise
        for other in self._others:
            other.commit()

    def rollback(self) -> None:
        self._own.rollback()
        for other in self._others:
            other.rollback()


class SessionConnection(MemoryConnection):
    """A connection like one over a Java client: each message is received by a session, and belongs to it."""

    alone = False

    def consume(self, subscription: Subscription, on_received: OnReceived) -> MemoryConsumer:
        with self.server.lock:  # no message is handed over before its consumer is complete
            consumer = super().consume(subscription, on_received)
            consumer.unit = self._opened_by  # type: ignore[assignment,method-assign]  # a session's
        return consumer

    def unit(self) -> UnitOfWork:  # type: ignore[override]
        return SessionUnit(super().unit, alone=self.alone)

    def _opened_by(self, received: Received) -> UnitOfWork:
        return SessionUnit(super().unit, received, alone=self.alone)


class ConfirmingConnection(LesserConnection):
    """A connection that counts the units of work whose commit the broker has confirmed."""

    confirmed = 0

    def unit(self) -> UnitOfWork:
        return cast("UnitOfWork", _CountedUnit(super().unit(), self))


class _CountedUnit:
    def __init__(self, inner: UnitOfWork, connection: ConfirmingConnection) -> None:
        self._inner = inner
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def commit(self) -> None:
        self._inner.commit()
        self._connection.confirmed += 1
