"""Throughput over STOMP: a plain stomp.py loop beside this package's transport, on one broker in one run.

One connection sends, one receives; persistent messages of 1 KiB. `python -m tests.bench` calls `measure`.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import stomp

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import (
    Connection,
    ConnectionSettings,
    Outgoing,
    Received,
    Subscription,
)

BODY = "x" * 1024
TRANSACTION = 100
PUBLISH_TRANSACTION = 1000
_PATIENCE = 120.0
# What plain stomp.py must send besides, so that a queue is a queue on Artemis.
_QUEUE_HEADERS = {"artemis": {"destination-type": "ANYCAST", "subscription-type": "ANYCAST"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """One measurement.

    Attributes:
        what: What was done, in words.
        who: `stomp.py` or `ours`.
        per_second: Messages per second.
    """

    what: str
    who: str
    per_second: float


class _Done:
    """Counts messages and tells when all are there."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.count = 0
        self._event = threading.Event()

    def add(self) -> None:
        self.count += 1
        if self.count == self.total:
            self._event.set()

    def wait(self) -> None:
        if not self._event.wait(_PATIENCE):
            raise TimeoutError(f"{self.count} of {self.total} messages in {_PATIENCE:g} s")


def measure(settings: ConnectionSettings, messages: int = 20_000) -> Iterable[Rate]:
    """Yield the rates as they are measured."""
    with_ours = connect(settings)
    product = with_ours.broker.product
    with_ours.close()
    pairs: list[tuple[str, Callable[..., float], Callable[..., float]]] = [
        (f"publish, transactions of {PUBLISH_TRANSACTION}", _plain_publish, _our_publish),
        ("receive, individual acknowledgements", _plain_receive, _our_receive),
        (f"receive, transactions of {TRANSACTION}", _plain_transactions, _our_transactions),
    ]
    for what, plain, ours in pairs:
        yield Rate(what=what, who="stomp.py", per_second=plain(settings, product, messages))
        yield Rate(what=what, who="ours", per_second=ours(settings, messages))


def _rate(messages: int, began: float) -> float:
    return messages / (time.perf_counter() - began)


def _queue() -> str:
    return f"bench.{uuid.uuid4().hex[:12]}"


def _fill(connection: Connection, queue: str, messages: int) -> None:
    outgoing = Outgoing(destination=Destination.queue(queue), message=JmsMessage.text(BODY))
    connection.send(outgoing for _ in range(messages))


def _empty(connection: Connection, queue: str, messages: int) -> None:
    done = _Done(messages)

    def settle(received: Received) -> None:
        # Decoding is left to whoever asks for the message; stomp.py has always done it.
        assert received.message.body is not None
        received.consumer.acknowledge([received])
        done.add()

    consumer = connection.consume(Subscription(destination=Destination.queue(queue)), settle)
    done.wait()
    connection.synchronize()
    consumer.close()


def _our_publish(settings: ConnectionSettings, messages: int) -> float:
    connection, queue = connect(settings), _queue()
    outgoing = Outgoing(destination=Destination.queue(queue), message=JmsMessage.text(BODY))
    began = time.perf_counter()
    for _ in range(messages // PUBLISH_TRANSACTION):
        unit = connection.unit()
        for _ in range(PUBLISH_TRANSACTION):
            unit.send(outgoing)
        unit.commit()
    rate = _rate(messages, began)
    _empty(connection, queue, messages)
    connection.close()
    return rate


def _our_receive(settings: ConnectionSettings, messages: int) -> float:
    connection, queue = connect(settings), _queue()
    _fill(connection, queue, messages)
    began = time.perf_counter()
    _empty(connection, queue, messages)
    rate = _rate(messages, began)
    connection.close()
    return rate


def _our_transactions(settings: ConnectionSettings, messages: int) -> float:
    connection, queue = connect(settings), _queue()
    _fill(connection, queue, messages)
    arrived: list[Received] = []
    ready = threading.Condition()

    def keep(received: Received) -> None:
        with ready:
            arrived.append(received)
            if len(arrived) >= TRANSACTION:
                ready.notify()

    began = time.perf_counter()
    consumer = connection.consume(
        Subscription(destination=Destination.queue(queue), prefetch=2 * TRANSACTION), keep
    )
    for _ in range(messages // TRANSACTION):
        with ready:
            if not ready.wait_for(lambda: len(arrived) >= TRANSACTION, _PATIENCE):
                raise TimeoutError("the messages stopped coming")
            batch = arrived[:TRANSACTION]
            del arrived[:TRANSACTION]
        unit = connection.unit()
        for received in batch:
            assert received.message.body is not None
            unit.acknowledge(received)
        unit.commit()
    rate = _rate(messages, began)
    consumer.close()
    connection.close()
    return rate


class _PlainListener(stomp.ConnectionListener):  # type: ignore[misc] # stomp.py has no types
    def __init__(self, connection: stomp.Connection12, done: _Done, transaction: int) -> None:
        self._connection = connection
        self._done = done
        self._transaction = transaction
        self._current: str | None = None

    def on_message(self, frame: stomp.utils.Frame) -> None:
        if self._transaction and self._current is None:
            self._current = self._connection.begin()
        self._connection.ack(frame.headers["ack"], transaction=self._current)
        self._done.add()
        if self._current is not None and self._done.count % self._transaction == 0:
            self._connection.commit(self._current)
            self._current = None


def _plain(settings: ConnectionSettings) -> stomp.Connection12:
    connection = stomp.Connection12(
        [settings.hosts[0]], vhost=settings.virtual_host or "/", heartbeats=(10_000, 10_000)
    )
    connection.connect(settings.username, settings.password, wait=True)
    return connection


def _address(product: str, queue: str) -> tuple[str, dict[str, str]]:
    headers = _QUEUE_HEADERS.get(product, {})
    return (queue if headers else f"/queue/{queue}"), headers


def _plain_publish(settings: ConnectionSettings, product: str, messages: int) -> float:
    connection, queue = _plain(settings), _queue()
    destination, headers = _address(product, queue)
    waiting = stomp.listener.WaitingListener("last")
    connection.set_listener("", waiting)
    began = time.perf_counter()
    for batch in range(messages // PUBLISH_TRANSACTION):
        transaction = connection.begin()
        for _ in range(PUBLISH_TRANSACTION):
            connection.send(
                destination, BODY, headers={"persistent": "true", **headers}, transaction=transaction
            )
        last = batch == messages // PUBLISH_TRANSACTION - 1
        connection.commit(transaction, **({"receipt": "last"} if last else {}))
    waiting.wait_on_receipt()
    rate = _rate(messages, began)
    connection.disconnect()
    ours = connect(settings)
    _empty(ours, queue, messages)
    ours.close()
    return rate


def _plain_consume(settings: ConnectionSettings, product: str, messages: int, transaction: int) -> float:
    ours, queue = connect(settings), _queue()
    _fill(ours, queue, messages)
    ours.close()
    connection = _plain(settings)
    done = _Done(messages)
    connection.set_listener("", _PlainListener(connection, done, transaction))
    destination, headers = _address(product, queue)
    began = time.perf_counter()
    connection.subscribe(destination, id="1", ack="client-individual", headers=headers)
    done.wait()
    rate = _rate(messages, began)
    connection.disconnect()
    return rate


def _plain_receive(settings: ConnectionSettings, product: str, messages: int) -> float:
    return _plain_consume(settings, product, messages, 0)


def _plain_transactions(settings: ConnectionSettings, product: str, messages: int) -> float:
    return _plain_consume(settings, product, messages, TRANSACTION)
