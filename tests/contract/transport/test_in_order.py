"""Consumers that promise to settle in order, which a transport may acknowledge many at a time."""

from __future__ import annotations

import pytest

from airflow_provider_jmsjca import ConfigurationError, Connection, Destination, Subscription
from tests.contract.transport.collector import Collector
from tests.contract.transport.traffic import Connect, assert_left, commit_something, publish
from tests.internals.transports import ConnectionState, Consumer, Received


@pytest.fixture(params=["among-others", "alone", "own-session"])
def promise(request: pytest.FixtureRequest) -> dict[str, bool]:
    """What else the caller promises or allows."""
    return {"alone": request.param == "alone", "own_session": request.param == "own-session"}


def _receive(
    connection: Connection, queue: Destination, count: int, promise: dict[str, bool]
) -> tuple[Consumer, list[Received]]:
    collector = Collector()
    consumer = connection.consume(Subscription(destination=queue, in_order=True, **promise), collector)
    return consumer, collector.wait(count)


def test_the_capability_says_whether_each_of_several_consumers_settles_in_order(
    connection: Connection, queue: Destination
) -> None:
    subscription = Subscription(destination=queue, in_order=True)
    consumers = [connection.consume(subscription, Collector()) for _ in range(2)]
    capabilities = connection.capabilities
    assert [each.settles_in_order for each in consumers] == [capabilities.cumulative_acknowledgement] * 2


def test_consumers_with_sessions_of_their_own_settle_in_order_and_apart(
    connect: Connect, queue: Destination
) -> None:
    """Over one connection for each: one acknowledgement settles messages of no other consumer."""
    connection = connect()
    bodies = publish(connection, queue, 40)
    collectors = [Collector(), Collector()]
    subscription = Subscription(destination=queue, in_order=True, own_session=True, prefetch=20)
    consumers = [connection.consume(subscription, collector) for collector in collectors]
    capabilities = connection.capabilities
    settles = capabilities.cumulative_acknowledgement or capabilities.own_sessions
    assert [each.settles_in_order for each in consumers] == [settles] * 2
    if not capabilities.own_sessions:
        return
    first, second = (collector.wait(20) for collector in collectors)
    units = [received[0].unit() for received in (first, second)]
    for one in second[:15]:
        units[1].acknowledge(one)
    for one in first:
        units[0].acknowledge(one)
    units[1].commit()
    units[0].rollback()
    consumers[1].close()  # the other one goes on
    consumers[0].acknowledge(first[:5])
    connection.synchronize()
    assert connection.state is ConnectionState.UP
    connection.close()
    gone = {one.message.body for one in (*second[:15], *first[:5])}
    assert_left(connect, queue, [body for body in bodies if body not in gone])


def test_acknowledged_is_gone_and_the_rest_comes_back(
    connect: Connect, queue: Destination, promise: dict[str, bool]
) -> None:
    connection = connect()
    bodies = publish(connection, queue, 90)
    consumer, received = _receive(connection, queue, 90, promise)
    for one in received[:80]:
        consumer.acknowledge([one])
    connection.synchronize()
    connection.close()
    assert_left(connect, queue, bodies[80:])


def test_what_is_settled_early_takes_nothing_with_it(
    connect: Connect, queue: Destination, promise: dict[str, bool]
) -> None:
    connection = connect()
    publish(connection, queue, 3)
    consumer, received = _receive(connection, queue, 3, promise)
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


def test_all_of_it_in_any_order(connect: Connect, queue: Destination, promise: dict[str, bool]) -> None:
    connection = connect()
    publish(connection, queue, 5)
    consumer, received = _receive(connection, queue, 5, promise)
    for index in (3, 1, 4, 0, 2):
        consumer.acknowledge([received[index]])
    connection.synchronize()
    connection.close()
    assert_left(connect, queue, [])


def test_recover_brings_the_unsettled_back_in_order(
    connection: Connection, queue: Destination, promise: dict[str, bool]
) -> None:
    bodies = publish(connection, queue, 6)
    collector = Collector()
    consumer = connection.consume(Subscription(destination=queue, in_order=True, **promise), collector)
    consumer.acknowledge(collector.wait(6)[:2])
    connection.synchronize()
    consumer.recover()
    again = collector.wait(10)[6:]
    assert [item.message.body for item in again] == bodies[2:]
    consumer.acknowledge(again)
    connection.synchronize()


def test_a_unit_settles_what_it_took_and_no_more(
    connect: Connect, queue: Destination, promise: dict[str, bool]
) -> None:
    connection = connect()
    bodies = publish(connection, queue, 60)
    consumer, received = _receive(connection, queue, 60, promise)
    consumer.acknowledge(received[:10])
    unit = received[10].unit()
    for one in received[10:50]:
        unit.acknowledge(one)
    unit.commit()
    connection.close()
    assert_left(connect, queue, bodies[50:])


def test_units_after_a_rollback(connect: Connect, queue: Destination, promise: dict[str, bool]) -> None:
    connection = connect()
    bodies = publish(connection, queue, 6)
    _, received = _receive(connection, queue, 6, promise)
    unit = received[0].unit()
    for one in received[:4]:
        unit.acknowledge(one)
    unit.rollback()
    unit = received[0].unit()
    for one in received[:2]:
        unit.acknowledge(one)
    unit.commit()
    connection.close()
    assert_left(connect, queue, bodies[2:])


def test_a_message_belongs_to_one_unit(
    connect: Connect, queue: Destination, promise: dict[str, bool]
) -> None:
    connection = connect()
    bodies = publish(connection, queue, 2)
    _, received = _receive(connection, queue, 2, promise)
    first, second = received[0].unit(), received[1].unit()
    first.acknowledge(received[0])
    for unit in (first, second):
        with pytest.raises(ConfigurationError, match="part of a unit of work already"):
            unit.acknowledge(received[0])
    second.rollback()
    first.commit()
    connection.close()
    assert_left(connect, queue, bodies[1:])


def test_the_commit_of_another_unit_takes_nothing_along(
    connect: Connect, queue: Destination, name: str, promise: dict[str, bool]
) -> None:
    connection, other_queue = connect(), Destination.queue(f"{name}.other")
    bodies = publish(connection, queue, 4)
    _, received = _receive(connection, queue, 4, promise)
    unit = received[0].unit()
    for one in received:
        unit.acknowledge(one)
    commit_something(connection, other_queue)
    unit.rollback()
    commit_something(connection, other_queue)
    connection.close()
    assert_left(connect, queue, bodies)


def test_messages_on_their_way_at_a_recovery_are_not_lost(
    connect: Connect, queue: Destination, promise: dict[str, bool]
) -> None:
    connection = connect()
    bodies = publish(connection, queue, 300)
    collector = Collector()
    consumer = connection.consume(Subscription(destination=queue, in_order=True, **promise), collector)
    settled: list[object] = []
    for wanted in (1, 40, 80):
        collector.wait(wanted)
        consumer.recover()
        current = [one for one in collector.received if one.generation == consumer.generation][:5]
        consumer.acknowledge(current)
        settled += [one.message.body for one in current]
    while len(settled) < len(bodies):
        known = len(collector.received)
        current = [one for one in collector.received if one.generation == consumer.generation]
        fresh = [one for one in current if one.message.body not in settled]
        consumer.acknowledge(fresh)
        settled += [one.message.body for one in fresh]
        if len(settled) < len(bodies):
            collector.wait(known + 1)
    assert sorted(settled, key=str) == sorted(bodies)
    connection.synchronize()
    connection.close()
    assert_left(connect, queue, [])


def test_alone_means_alone(connect: Connect, queue: Destination, name: str) -> None:
    """A second consumer is refused where its messages would be acknowledged along."""
    connection = connect()
    connection.consume(Subscription(destination=queue, in_order=True, alone=True), Collector())
    other = Subscription(destination=Destination.queue(f"{name}.other"))
    if connection.broker.product == "rabbitmq":
        with pytest.raises(ConfigurationError, match="one consumer"):
            connection.consume(other, Collector())
    else:
        connection.consume(other, Collector())
    connection.close()
