"""Received messages stay the broker's until settled; units of work."""

from __future__ import annotations

import threading
from queue import SimpleQueue

import pytest

from airflow_provider_jmsjca import (
    Connection,
    Destination,
    JmsError,
    JmsMessage,
    Outgoing,
    PermanentBrokerError,
    Subscription,
)
from tests.contract.transport.collector import DEADLINE, Collector
from tests.contract.transport.lab import Lab
from tests.contract.transport.traffic import Connect, assert_left, publish, settle
from tests.internals.transports import Received, UnitOfWork


def test_order(connection: Connection, queue: Destination) -> None:
    bodies = publish(connection, queue, 300)
    collector = Collector(settle)
    connection.consume(Subscription(destination=queue), collector)
    collector.wait(300)
    assert collector.bodies == bodies


def test_callbacks_come_on_another_thread(connection: Connection, queue: Destination) -> None:
    publish(connection, queue, 3)
    collector = Collector()
    connection.consume(Subscription(destination=queue), collector)
    collector.wait(3)
    assert len(collector.threads) == 1
    assert threading.get_ident() not in collector.threads


def test_acknowledged_is_gone_and_the_rest_comes_back(connect: Connect, queue: Destination) -> None:
    connection = connect()
    publish(connection, queue, 4)
    collector = Collector()
    consumer = connection.consume(Subscription(destination=queue), collector)
    received = collector.wait(4)
    consumer.acknowledge([received[0], received[2]])
    connection.synchronize()
    connection.close()
    assert_left(connect, queue, ["1", "3"])


def test_closing_the_consumer_hands_back(
    connection: Connection, connect: Connect, queue: Destination
) -> None:
    bodies = publish(connection, queue, 5)
    collector = Collector()
    consumer = connection.consume(Subscription(destination=queue), collector)
    collector.wait(5)
    consumer.close()
    consumer.close()
    assert_left(connect, queue, bodies)


def test_recover_delivers_again_in_order(connection: Connection, queue: Destination) -> None:
    bodies = publish(connection, queue, 5)
    collector = Collector()
    consumer = connection.consume(Subscription(destination=queue), collector)
    first = collector.wait(5)
    consumer.acknowledge([first[0]])
    connection.synchronize()
    consumer.recover()
    again = collector.wait(9)[5:]
    assert [item.message.body for item in again] == bodies[1:]
    assert {item.generation for item in again} == {consumer.generation}
    assert consumer.generation != first[0].generation
    if connection.capabilities.delivery_count:
        assert [item.message.delivery_count for item in first + again] == [1] * 5 + [2] * 4
    else:
        assert {item.message.delivery_count for item in first + again} == {None}
    consumer.acknowledge(again)
    connection.synchronize()


def test_what_is_acknowledged_beside_a_recover_is_settled_or_comes_again(
    connect: Connect, queue: Destination
) -> None:
    """From another thread. The connection must not keep it, out of everybody's reach."""
    times = 5
    connection = connect()
    arrived: SimpleQueue[Received | None] = SimpleQueue()
    collector, settled = Collector(arrived.put), Collector()
    consumer = connection.consume(Subscription(destination=queue, prefetch=50), collector)

    def acknowledge() -> None:
        while (received := arrived.get()) is not None:
            consumer.acknowledge([received])
            if received.generation == consumer.generation:
                settled(received)

    acknowledging = threading.Thread(target=acknowledge, daemon=True)
    acknowledging.start()
    bodies: list[str] = []
    for _ in range(times):
        before = len(collector.received)
        bodies += publish(connection, queue, 60, start=len(bodies))
        collector.wait(before + 1)
        consumer.recover()
    settled.wait(len(bodies) - times)  # each time one may be settled right before, unnoticed
    collector.settle_down()
    arrived.put(None)
    acknowledging.join(DEADLINE)
    connection.synchronize()
    assert sorted(set(collector.bodies), key=lambda body: int(str(body))) == bodies
    connection.close()
    assert_left(connect, queue, [])


def test_redelivered_flag_after_a_lost_client(connect: Connect, queue: Destination) -> None:
    connection = connect()
    publish(connection, queue, 1)
    collector = Collector()
    connection.consume(Subscription(destination=queue), collector)
    (first,) = collector.wait(1)
    assert first.message.redelivered is False
    connection.close()
    again = Collector()
    connection = connect()
    consumer = connection.consume(Subscription(destination=queue), again)
    (second,) = again.wait(1)
    if connection.capabilities.redelivered_flag:
        assert second.message.redelivered is True
    consumer.acknowledge([second])
    connection.synchronize()


def test_stale_and_double_acknowledgements_are_harmless(
    connection: Connection, connect: Connect, queue: Destination
) -> None:
    publish(connection, queue, 3)
    collector = Collector()
    consumer = connection.consume(Subscription(destination=queue), collector)
    stale = collector.wait(3)
    consumer.recover()
    fresh = collector.wait(6)[3:]
    consumer.acknowledge(stale)
    connection.synchronize()
    consumer.acknowledge([fresh[0]])
    consumer.acknowledge([fresh[0]])
    connection.synchronize()
    unit = fresh[1].unit()
    unit.acknowledge(stale[1])
    unit.acknowledge(fresh[0])
    unit.commit()
    consumer.close()
    consumer.acknowledge(fresh)
    connection.synchronize()
    assert_left(connect, queue, ["1", "2"])


def test_unit_sends_on_commit_and_not_before(
    connection: Connection, connect: Connect, queue: Destination
) -> None:
    unit = connection.unit()
    for number in range(3):
        unit.send(Outgoing(destination=queue, message=JmsMessage.text(str(number))))
    assert_left(connect, queue, [])
    unit.commit()
    assert_left(connect, queue, ["0", "1", "2"])


def test_unit_rolled_back_sends_nothing_and_settles_nothing(
    connection: Connection, connect: Connect, queue: Destination, name: str
) -> None:
    publish(connection, queue, 2)
    target = Destination.queue(f"{name}.target")
    collector = Collector()
    consumer = connection.consume(Subscription(destination=queue), collector)
    received = collector.wait(2)
    unit = received[0].unit()
    unit.send(Outgoing(destination=target, message=JmsMessage.text("x")))
    for item in received:
        unit.acknowledge(item)
    unit.rollback()
    connection.synchronize()
    assert len(collector.received) == 2
    consumer.recover()
    again = collector.wait(4)[2:]
    assert [item.message.body for item in again] == ["0", "1"]
    consumer.close()
    assert_left(connect, target, [])
    assert_left(connect, queue, ["0", "1"])


def test_what_a_rolled_back_unit_held_can_be_settled_by_the_next(
    connection: Connection, connect: Connect, queue: Destination
) -> None:
    publish(connection, queue, 2)
    collector = Collector()
    consumer = connection.consume(Subscription(destination=queue), collector)
    received = collector.wait(2)
    first = received[0].unit()
    first.acknowledge(received[0])
    first.rollback()
    second = received[0].unit()
    second.acknowledge(received[0])
    second.commit()
    consumer.close()
    assert_left(connect, queue, ["1"])


def test_move(connection: Connection, connect: Connect, queue: Destination, name: str) -> None:
    bodies = publish(connection, queue, 20)
    target = Destination.queue(f"{name}.dlq")
    collector = Collector()
    consumer = connection.consume(Subscription(destination=queue), collector)
    for item in collector.wait(20):
        unit = item.unit()
        unit.send(Outgoing(destination=target, message=item.message))
        unit.acknowledge(item)
        unit.commit()
    consumer.close()
    assert_left(connect, queue, [])
    assert_left(connect, target, bodies)


def test_unit_of_500_receipts_does_not_stall(
    connection: Connection, connect: Connect, queue: Destination
) -> None:
    bodies = publish(connection, queue, 600)
    units: list[UnitOfWork] = []

    def take(received: Received) -> None:
        if not units:
            units.append(received.unit())
        units[0].acknowledge(received)

    collector = Collector(take)
    consumer = connection.consume(Subscription(destination=queue, prefetch=600), collector)
    collector.wait(600)
    units[0].commit()
    assert collector.bodies == bodies
    consumer.close()
    assert_left(connect, queue, [])


def test_a_unit_is_used_once(connection: Connection) -> None:
    unit = connection.unit()
    unit.commit()
    for use in (unit.commit, unit.rollback):
        with pytest.raises(JmsError):
            use()


def test_a_refused_send_is_a_permanent_error(lab: Lab, connection: Connection) -> None:
    forbidden = lab.forbidden()
    if forbidden is None:
        pytest.skip("this broker refuses its user nothing")
    with pytest.raises(PermanentBrokerError):
        connection.send([Outgoing(destination=forbidden, message=JmsMessage.text("x"))])


def test_a_refused_unit_acknowledges_nothing(lab: Lab, connect: Connect, queue: Destination) -> None:
    forbidden = lab.forbidden()
    if forbidden is None:
        pytest.skip("this broker refuses its user nothing")
    connection = connect()
    publish(connection, queue, 1)
    collector = Collector()
    connection.consume(Subscription(destination=queue), collector)
    (received,) = collector.wait(1)
    unit = received.unit()
    unit.send(Outgoing(destination=forbidden, message=JmsMessage.text("x")))
    unit.acknowledge(received)
    with pytest.raises(JmsError):
        unit.commit()
    connection.close()
    assert_left(connect, queue, ["0"])


def test_a_unit_happens_at_once_or_its_sends_come_first(
    lab: Lab, connect: Connect, queue: Destination, name: str
) -> None:
    """What `atomic_commit` says: where it is off, a send that is there is no proof of the acknowledgement."""
    forbidden = lab.forbidden()
    if forbidden is None:
        pytest.skip("this broker refuses its user nothing")
    target = Destination.queue(f"{name}.target")
    connection = connect()
    publish(connection, queue, 1)
    collector = Collector()
    connection.consume(Subscription(destination=queue), collector)
    (received,) = collector.wait(1)
    unit = received.unit()
    for destination in (target, forbidden):
        unit.send(Outgoing(destination=destination, message=JmsMessage.text("x")))
    unit.acknowledge(received)
    with pytest.raises(JmsError):
        unit.commit()
    atomic = connection.capabilities.atomic_commit
    connection.close()
    assert_left(connect, target, [] if atomic else ["x"])
    assert_left(connect, queue, ["0"])


def test_what_a_unit_acknowledges_makes_room_where_it_says_so(
    connection: Connection, connect: Connect, queue: Destination
) -> None:
    """What `unit_frees_prefetch` says."""
    # Of a usual size: some brokers bound it in bytes.
    connection.send(Outgoing(destination=queue, message=JmsMessage.text(f"{n:1400}")) for n in range(20))
    units: list[UnitOfWork] = []
    taken: list[Received] = []

    def take(received: Received) -> None:
        if not units:
            units.append(received.unit())
        if not full.is_set():
            units[0].acknowledge(received)
            taken.append(received)

    full = threading.Event()
    collector = Collector(take)
    consumer = connection.consume(Subscription(destination=queue, prefetch=5), collector)
    expected = 20 if connection.capabilities.unit_frees_prefetch else 5
    collector.wait(expected)
    collector.settle_down()
    full.set()
    units[0].commit()
    consumer.close()
    assert len(taken) == expected
    assert_left(connect, queue, [f"{n:1400}" for n in range(len(taken), 20)])
