"""Filling queues and looking into them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from airflow_provider_jmsjca import Connection, Destination, JmsMessage, Outgoing, Subscription
from tests.contract.transport.collector import Collector
from tests.internals.transports import Received

Connect: TypeAlias = Callable[..., Connection]


def settle(received: Received) -> None:
    """Callback that acknowledges at once."""
    received.consumer.acknowledge([received])


def publish(connection: Connection, destination: Destination, count: int, start: int = 0) -> list[str]:
    bodies = [str(number) for number in range(start, start + count)]
    sent = connection.send(
        Outgoing(destination=destination, message=JmsMessage.text(body)) for body in bodies
    )
    assert sent == count
    return bodies


def commit_something(connection: Connection, destination: Destination) -> None:
    unit = connection.unit()
    unit.send(Outgoing(destination=destination, message=JmsMessage.text("never there")))
    unit.commit()


def assert_left(connect: Connect, queue: Destination, bodies: list[str]) -> None:
    """Check what another client finds in the queue, which is empty afterwards."""
    other = connect()
    collector = Collector()
    consumer = other.consume(Subscription(destination=queue, prefetch=1000), collector)
    if bodies:
        collector.wait(len(bodies))
    found = collector.settle_down()
    consumer.acknowledge(found)
    other.synchronize()
    other.close()
    left = [item.message.body for item in found]
    assert left == bodies, f"left in {queue}: {left}, expected: {bodies}"


def drain(connection: Connection, queue: Destination) -> list[JmsMessage]:
    """Return the messages of a queue, which is empty afterwards."""
    collector = Collector()
    consumer = connection.consume(Subscription(destination=queue, prefetch=1000), collector)
    found = collector.settle_down()
    consumer.acknowledge(found)
    connection.synchronize()
    consumer.close()
    return [each.message for each in found]
