"""Messages together with the unit of work of their consumer."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.errors import ConnectionLostError
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import Connection, ConnectionSettings, Outgoing, Subscription
from airflow_provider_jmsjca.transports.memory import MemoryBroker, memory_broker
from airflow_provider_jmsjca.transports.receiving import BufferedConsumer

pytestmark = pytest.mark.unit

ORDERS = Destination.queue("orders")
WITHIN = 20.0


@pytest.fixture
def server() -> MemoryBroker:
    return memory_broker(f"receiving-{uuid.uuid4().hex[:8]}")


@pytest.fixture
def connection(server: MemoryBroker) -> Iterator[Connection]:
    opened = connect(ConnectionSettings(scheme="vm", hosts=((server.name, None),)))
    yield opened
    opened.close()


def publish(connection: Connection, *bodies: str) -> None:
    connection.send(Outgoing(destination=ORDERS, message=JmsMessage.text(body)) for body in bodies)


def test_a_unit_settles_the_messages_that_it_came_with(server: MemoryBroker, connection: Connection) -> None:
    publish(connection, "a", "b", "c")
    consumer = BufferedConsumer(connection, Subscription(destination=ORDERS))
    unit = consumer.next_unit(2, within=WITHIN, each_within=WITHIN)
    assert unit is not None
    assert [each.message.body for each in unit.messages] == ["a", "b"]
    for each in unit.messages:
        unit.work.acknowledge(each)
    unit.work.commit()
    consumer.close()
    assert [each.body for each in server.messages(ORDERS.name)] == ["c"]


def test_there_is_no_unit_without_a_message(connection: Connection) -> None:
    consumer = BufferedConsumer(connection, Subscription(destination=ORDERS))
    assert consumer.next_unit(2, within=0.0) is None


def test_a_rolled_back_unit_settles_nothing(server: MemoryBroker, connection: Connection) -> None:
    publish(connection, "a")
    consumer = BufferedConsumer(connection, Subscription(destination=ORDERS))
    unit = consumer.next_unit(9, within=WITHIN)
    assert unit is not None
    unit.work.acknowledge(unit.messages[0])
    unit.work.rollback()
    consumer.close()
    assert [each.body for each in server.messages(ORDERS.name)] == ["a"]


def test_messages_of_a_lost_connection_are_not_handed_out(
    server: MemoryBroker, connection: Connection
) -> None:
    publish(connection, "a")
    consumer = BufferedConsumer(connection, Subscription(destination=ORDERS))
    assert consumer.take(1, within=WITHIN)
    publish(connection, "b")
    server.kill()
    with pytest.raises(ConnectionLostError):
        consumer.next_unit(1, within=WITHIN)


def test_messages_received_before_a_renewal_are_not_handed_out_again(connection: Connection) -> None:
    publish(connection, "a", "b")
    consumer = BufferedConsumer(connection, Subscription(destination=ORDERS))
    assert consumer.take(1, within=WITHIN)
    consumer.renew(Subscription(destination=ORDERS, prefetch=1))
    found = consumer.take(9, within=WITHIN)
    assert [each.message.body for each in found] == ["a"]
