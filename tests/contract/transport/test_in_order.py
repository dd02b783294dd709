"""Consumers that promise to settle in order, which a transport may acknowledge many at a time."""

from __future__ import annotations

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.transports.base import Connection, Consumer, Received, Subscription
from tests.contract.transport.collector import Collector
from tests.contract.transport.traffic import Connect, assert_left, commit_something, publish


def _receive(connection: Connection, queue: Destination, count: int) -> tuple[Consumer, list[Received]]:
    collector = Collector()
    consumer = connection.consume(Subscription(destination=queue, in_order=True), collector)
    return consumer, collector.wait(count)


def test_acknowledged_is_gone_and_the_rest_comes_back(connect: Connect, queue: Destination) -> None:
    connection = connect()
    bodies = publish(connection, queue, 90)
    consumer, received = _receive(connection, queue, 90)
    for one in received[:80]:
        consumer.acknowledge([one])
    connection.synchronize()
    connection.close()
    assert_left(connect, queue, bodies[80:])


def test_what_is_settled_early_takes_nothing_with_it(connect: Connect, queue: Destination) -> None:
    connection = connect()
    publish(connection, queue, 3)
    consumer, received = _receive(connection, queue, 3)
    consumer.acknowledge([received[2]])
    connection.synchronize()
    consumer.acknowledge([received[0]])
    connection.synchronize()
    connection.close()
    other = connect()
    collector = Collector()
    other.consume(Subscription(destination=queue), collector)
    collector.wait(1)
    assert collector.settle_down()[0].message.body == "1"
    assert "0" not in collector.bodies
    other.close()


def test_all_of_it_in_any_order(connect: Connect, queue: Destination) -> None:
    connection = connect()
    publish(connection, queue, 5)
    consumer, received = _receive(connection, queue, 5)
    for index in (3, 1, 4, 0, 2):
        consumer.acknowledge([received[index]])
    connection.synchronize()
    connection.close()
    assert_left(connect, queue, [])


def test_recover_brings_the_unsettled_back_in_order(connection: Connection, queue: Destination) -> None:
    bodies = publish(connection, queue, 6)
    collector = Collector()
    consumer = connection.consume(Subscription(destination=queue, in_order=True), collector)
    consumer.acknowledge(collector.wait(6)[:2])
    connection.synchronize()
    consumer.recover()
    again = collector.wait(10)[6:]
    assert [item.message.body for item in again] == bodies[2:]
    consumer.acknowledge(again)
    connection.synchronize()


def test_a_unit_settles_what_it_took_and_no_more(connect: Connect, queue: Destination) -> None:
    connection = connect()
    bodies = publish(connection, queue, 60)
    consumer, received = _receive(connection, queue, 60)
    consumer.acknowledge(received[:10])
    unit = connection.unit()
    for one in received[10:50]:
        unit.acknowledge(one)
    unit.commit()
    connection.close()
    assert_left(connect, queue, bodies[50:])


def test_units_after_a_rollback(connect: Connect, queue: Destination) -> None:
    connection = connect()
    bodies = publish(connection, queue, 6)
    _, received = _receive(connection, queue, 6)
    unit = connection.unit()
    for one in received[:4]:
        unit.acknowledge(one)
    unit.rollback()
    unit = connection.unit()
    for one in received[:2]:
        unit.acknowledge(one)
    unit.commit()
    connection.close()
    assert_left(connect, queue, bodies[2:])


def test_the_commit_of_another_unit_takes_nothing_along(
    connect: Connect, queue: Destination, name: str
) -> None:
    connection, other_queue = connect(), Destination.queue(f"{name}.other")
    bodies = publish(connection, queue, 4)
    _, received = _receive(connection, queue, 4)
    unit = connection.unit()
    for one in received:
        unit.acknowledge(one)
    commit_something(connection, other_queue)
    unit.rollback()
    commit_something(connection, other_queue)
    connection.close()
    assert_left(connect, queue, bodies)
