"""Runs listeners over a broker of this process, for tests."""

from __future__ import annotations

import functools
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.backoff import Backoff
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.engine.activations.listener import Listener
from airflow_provider_jmsjca.engine.activations.run import one_connection
from airflow_provider_jmsjca.engine.delivering.delivery import Delivery
from airflow_provider_jmsjca.engine.delivering.settings import (
    ListenerContext,
    ListenerSettings,
    Subscribes,
    listener_settings,
)
from airflow_provider_jmsjca.engine.delivering.threaded.workers import Handler
from airflow_provider_jmsjca.errors import ConnectionLostError, InDoubtError, PermanentBrokerError
from airflow_provider_jmsjca.store.base import Store
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import Connection, ConnectionSettings, Outgoing, UnitOfWork
from airflow_provider_jmsjca.transports.memory import MemoryBroker as Broker
from airflow_provider_jmsjca.transports.memory import MemoryConnection
from airflow_provider_jmsjca.transports.memory import memory_broker as broker

ORDERS = Destination.queue("orders")
QUICK = timedelta(milliseconds=400)
MODES: tuple[dict[str, Any], ...] = (
    {"concurrency_mode": "serial"},
    {"concurrency_mode": "cc", "endpoint_pool_max_size": 3},
    {"concurrency_mode": "sync", "endpoint_pool_max_size": 3},
)

every_mode = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode["concurrency_mode"])

_AT_ONCE = Backoff(steps=(timedelta(milliseconds=20),))


def until(condition: Callable[[], object], *, within: float = 20) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "it didn't happen in time"
        time.sleep(0.002)


def nothing(_: Delivery) -> None:
    """Handle a message by doing nothing."""


def fail(_: Delivery) -> None:
    raise ValueError("no stock")


def refusing_at_commit(
    server: Broker, settings: ConnectionSettings, longest: int, *, closing: bool = False
) -> MemoryConnection:
    """Return a connection on which a commit with a longer property is refused, and undone.

    With `closing` the broker ends the connection for it, as Artemis does, and nothing says why.
    """

    class Picky(MemoryConnection):
        def unit(self) -> UnitOfWork:
            unit = super().unit()
            sent: list[Outgoing] = []
            send, commit = unit.send, unit.commit

            def noting(item: Outgoing) -> None:
                sent.append(item)
                send(item)

            def picky(meanwhile: object = None) -> None:
                del meanwhile
                if any(
                    len(str(value)) > longest for one in sent for value in one.message.properties.values()
                ):
                    unit.rollback()
                    if closing:
                        self.connection_lost(lost := ConnectionLostError("the broker closed the connection"))
                        raise InDoubtError(f"during a commit: {lost}")
                    raise PermanentBrokerError("the broker refused a part of the unit: property too long")
                commit()

            unit.send, unit.commit = noting, picky  # type: ignore[method-assign,assignment]
            return unit

    return Picky(server, settings)


class Site:
    """A broker, what a handler got from it, and the activation in between."""

    def __init__(self) -> None:
        self.broker: Broker = broker(f"listener-{uuid.uuid4().hex[:8]}")
        self.settings = ConnectionSettings(scheme="vm", hosts=((self.broker.name, None),))
        self.got: list[Any] = []
        self.attempts: list[tuple[Any, int]] = []
        self.threads: list[int] = []
        self._lock = threading.Lock()
        self._started: list[Listener] = []

    def send(self, *bodies: str, to: Destination = ORDERS, **properties: Any) -> None:
        connection = connect(self.settings)
        connection.send(
            Outgoing(destination=to, message=JmsMessage.text(body, properties)) for body in bodies
        )
        connection.close()

    def note(self, delivery: Any) -> None:
        """Remember a delivery."""
        with self._lock:
            body = "END" if delivery.end_of_batch else delivery.body
            self.got.append(body)
            self.attempts.append((body, delivery.redelivery_count))
            self.threads.append(threading.get_ident())

    def activation(
        self,
        handler: Handler,
        *,
        connect_with: Callable[[], Connection] | None = None,
        changes: dict[str, Any] | None = None,
        non_blocking_redelivery: bool = False,
        confirm_acknowledgements: bool = False,
        store: Store | None = None,
        jms_conn_id: str = "",
        subscribes: Subscribes | None = None,
        balanced: bool = False,
        **spec: Any,
    ) -> Listener:
        """Return an activation that notes every delivery before its handler gets it."""

        def noting(delivery: Any) -> None:
            self.note(delivery)
            handler(delivery)

        if jms_conn_id:  # with limbo
            spec = {"use_store": True} | spec
        settings = self.listener_settings(
            non_blocking_redelivery=non_blocking_redelivery,
            confirm_acknowledgements=confirm_acknowledgements,
            subscribes=subscribes,
            store=store,
            jms_conn_id=jms_conn_id,
            **spec,
        )
        settings = replace(
            settings,
            balanced=balanced,
            store=store,
            delivery=replace(
                settings.delivery,
                outage=replace(settings.delivery.outage, backoff=_AT_ONCE),
                **({"record_attempts": store is not None} | (changes or {})),
            ),
        )
        made = Listener(
            one_connection(settings, connect_with or functools.partial(connect, self.settings)),
            noting,
            chance=lambda: 0.0,
        )
        self._started.append(made)
        return made

    @staticmethod
    def listener_settings(
        *,
        non_blocking_redelivery: bool = False,
        confirm_acknowledgements: bool = False,
        subscribes: Subscribes | None = None,
        store: Store | None = None,
        jms_conn_id: str = "",
        **spec: Any,
    ) -> ListenerSettings:
        full = {"destination": "orders", "destination_type": "queue"} | spec
        return listener_settings(
            ActivationSpec(**full),
            ListenerContext(
                non_blocking_redelivery=non_blocking_redelivery,
                confirm_acknowledgements=confirm_acknowledgements,
                principal="bob",
                subscribes=subscribes,
                store=store,
                jms_conn_id=jms_conn_id,
            ),
        )

    def bodies(self, queue: str) -> list[Any]:
        return [message.body for message in self.broker.messages(queue)]

    def close(self) -> None:
        for activation in self._started:
            activation.stop(timedelta(seconds=1))
