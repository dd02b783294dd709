"""The plainest way from Python: stomp.py with a listener that acknowledges."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import ClassVar

import stomp

from airflow_provider_jmsjca.transports import connect
from tests.bench.filling import fill
from tests.bench.rates import (
    BODY,
    INDIVIDUAL,
    PATIENCE,
    PLAIN,
    PUBLISH,
    PUBLISH_TRANSACTION,
    TRANSACTED,
    TRANSACTION,
    Measured,
    Meter,
)
from tests.bench.rival import Leg, new_queue
from tests.servers.broker import Broker

# What stomp.py must send besides, so that a queue is a queue on Artemis.
_QUEUE_HEADERS = {"artemis": {"destination-type": "ANYCAST", "subscription-type": "ANYCAST"}}


class _Listener(stomp.ConnectionListener):  # type: ignore[misc] # stomp.py has no types
    def __init__(self, connection: stomp.Connection12, total: int, transaction: int) -> None:
        self._connection = connection
        self._total = total
        self._transaction = transaction
        self._current: str | None = None
        self._count = 0
        self._done = threading.Event()

    def on_message(self, frame: stomp.utils.Frame) -> None:
        if self._transaction and self._current is None:
            self._current = self._connection.begin()
        self._connection.ack(frame.headers["ack"], transaction=self._current)
        self._count += 1
        if self._current is not None and self._count % self._transaction == 0:
            self._connection.commit(self._current)
            self._current = None
        if self._count == self._total:
            self._done.set()

    def wait(self) -> None:
        if not self._done.wait(PATIENCE):
            raise TimeoutError(f"stomp.py got {self._count} of {self._total} messages in {PATIENCE:g} s")


class PlainStomp:
    """stomp.py as its documentation shows it, one connection for each piece of work."""

    who: ClassVar[str] = PLAIN

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._settings = broker.settings()
        connection = connect(self._settings)
        self._headers = _QUEUE_HEADERS.get(connection.broker.product, {})
        connection.close()

    def manner(self) -> str:
        """Return how it works and what it waits for."""
        return (
            "STOMP transactions, a receipt for the last commit only (on RabbitMQ no such receipt means that "
            "messages are safe); acknowledgements are sent and never confirmed; the broker's own prefetch"
        )

    def legs(self) -> Mapping[str, Leg]:
        """Return its pieces of work."""
        return {INDIVIDUAL: self._publish_and_receive, TRANSACTED: self._transacted}

    def close(self) -> None:
        """Nothing is left open."""

    def _publish_and_receive(self, messages: int) -> Iterator[Measured]:
        queue, meter = new_queue(), Meter(self._broker)
        connection = self._connect()
        waiting = stomp.listener.WaitingListener("last")
        connection.set_listener("", waiting)
        destination = self._destination(queue)
        headers = {"persistent": "true", **self._headers}
        meter.start()
        for number in range(messages):
            if number % PUBLISH_TRANSACTION == 0:
                transaction = connection.begin()
            connection.send(destination, BODY, headers=headers, transaction=transaction)
            if number == messages - 1:
                connection.commit(transaction, receipt="last")
            elif (number + 1) % PUBLISH_TRANSACTION == 0:
                connection.commit(transaction)
        waiting.wait_on_receipt()
        meter.stop()
        yield meter.result(PUBLISH, self.who, messages)
        connection.disconnect()
        self._receive(queue, messages, 0)
        queue = new_queue()
        fill(self._settings, queue, messages)  # the same messages as everybody's, with all their headers
        yield self._receive(queue, messages, 0)

    def _transacted(self, messages: int) -> Iterator[Measured]:
        queue = new_queue()
        fill(self._settings, queue, messages)
        yield self._receive(queue, messages, TRANSACTION)

    def _receive(self, queue: str, messages: int, transaction: int) -> Measured:
        meter = Meter(self._broker)
        connection = self._connect()
        listener = _Listener(connection, messages, transaction)
        connection.set_listener("", listener)
        meter.start()
        connection.subscribe(
            self._destination(queue), id="1", ack="client-individual", headers=dict(self._headers)
        )
        listener.wait()
        meter.stop()
        connection.disconnect()
        return meter.result(TRANSACTED if transaction else INDIVIDUAL, self.who, messages)

    def _connect(self) -> stomp.Connection12:
        settings = self._settings
        connection = stomp.Connection12(
            [settings.hosts[0]],
            vhost=settings.virtual_host or "/",
            heartbeats=(10_000, 10_000),
            auto_content_length=False,  # with a length ActiveMQ and Artemis take text for bytes
        )
        connection.connect(settings.username, settings.password, wait=True)
        return connection

    def _destination(self, queue: str) -> str:
        return queue if self._headers else f"/queue/{queue}"
