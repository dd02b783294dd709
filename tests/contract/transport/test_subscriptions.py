"""Prefetch, sharing, selectors, browsing, topics, and what only some brokers do."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from queue import SimpleQueue

import pytest

from airflow_provider_jmsjca import (
    CapabilityError,
    ConfigurationError,
    Connection,
    Destination,
    JmsConnection,
    JmsError,
    JmsMessage,
    Outgoing,
    PermanentBrokerError,
    Subscription,
    TransientBrokerError,
)
from tests.contract.transport.collector import DEADLINE, Collector
from tests.contract.transport.traffic import Connect, settle
from tests.internals.core import parked_copy, unparked
from tests.internals.transports import Backlog, Received


def send(connection: Connection, destination: Destination, *messages: JmsMessage) -> None:
    connection.send(Outgoing(destination=destination, message=message) for message in messages)


def texts(*bodies: str) -> list[JmsMessage]:
    return [JmsMessage.text(body) for body in bodies]


def test_no_more_than_the_prefetch_is_outstanding(connection: Connection, queue: Destination) -> None:
    # Of a usual size: some brokers bound it in bytes.
    send(connection, queue, *texts(*(f"{number:1024}" for number in range(30))))
    collector = Collector()
    consumer = connection.consume(Subscription(destination=queue, prefetch=10), collector)
    collector.wait(1)
    first = collector.settle_down()
    assert 1 <= len(first) <= 10
    consumer.acknowledge(first[:1])
    collector.wait(len(first) + 1)
    consumer.close()


def test_prefetch_one_hands_out_one_by_one(connection: Connection, queue: Destination) -> None:
    send(connection, queue, *texts("0", "1", "2"))
    collector = Collector()
    consumer = connection.consume(Subscription(destination=queue, prefetch=1), collector)
    for expected in range(1, 4):
        collector.wait(expected)
        assert len(collector.settle_down()) == expected
        consumer.acknowledge(collector.received[-1:])
    assert collector.bodies == ["0", "1", "2"]
    connection.synchronize()


def test_a_prefetch_of_zero_is_refused(connection: Connection, queue: Destination) -> None:
    with pytest.raises(ConfigurationError, match="prefetch"):
        connection.consume(Subscription(destination=queue, prefetch=0), Collector())


def test_two_consumers_share_a_queue(connection: Connection, connect: Connect, queue: Destination) -> None:
    one, two = Collector(settle), Collector(settle)
    connection.consume(Subscription(destination=queue, prefetch=5), one)
    connect().consume(Subscription(destination=queue, prefetch=5), two)
    send(connection, queue, *texts(*(str(number) for number in range(100))))
    deadline = time.monotonic() + DEADLINE
    while len(one.received) + len(two.received) < 100 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert sorted(map(int, one.bodies + two.bodies)) == list(range(100))
    assert one.received
    assert two.received


def test_two_consumers_on_one_connection(connection: Connection, queue: Destination) -> None:
    one, two = Collector(), Collector()
    first = connection.consume(Subscription(destination=queue, prefetch=1), one)
    send(connection, queue, *texts("0"))
    one.wait(1)
    second = connection.consume(Subscription(destination=queue, prefetch=1), two)
    send(connection, queue, *texts("1"))
    two.wait(1)
    first.acknowledge(one.received)
    second.acknowledge(two.received)
    connection.synchronize()
    assert (one.bodies, two.bodies) == (["0"], ["1"])


def test_selector_or_refusal(connection: Connection, connect: Connect, queue: Destination) -> None:
    if not connection.capabilities.selector:
        with pytest.raises(CapabilityError, match="selector"):
            connection.consume(Subscription(destination=queue, selector="region = 'eu'"), Collector())
        return
    send(
        connection,
        queue,
        JmsMessage.text("0", {"region": "us"}),
        JmsMessage.text("1", {"region": "eu"}),
        JmsMessage.text("2"),
        JmsMessage.text("3", {"region": "eu"}),
    )
    chosen, rest = Collector(), Collector()
    consumer = connection.consume(Subscription(destination=queue, selector="region = 'eu'"), chosen)
    chosen.wait(2)
    assert [item.message.body for item in chosen.settle_down()] == ["1", "3"]
    consumer.acknowledge(chosen.received)
    consumer.close()
    consumer = connect().consume(Subscription(destination=queue), rest)
    rest.wait(2)
    assert [item.message.body for item in rest.settle_down()] == ["0", "2"]
    consumer.acknowledge(rest.received)


@pytest.mark.parametrize("blank", ["", " ", "\r\n\t"])
def test_a_blank_selector_selects_every_message(
    connection: Connection, connect: Connect, queue: Destination, blank: str
) -> None:
    """On a broker without selectors too."""
    send(connection, queue, *texts("0", "1"))
    with JmsConnection(connect()) as jms, jms.session() as session:
        if connection.capabilities.browse:
            assert [message.body for message in session.browse(queue, blank)] == ["0", "1"]
        message = session.receive(queue, timeout=DEADLINE, selector=blank)
        assert message is not None
        assert message.body == "0"
    collector = Collector()
    consumer = connection.consume(Subscription(destination=queue, selector=blank), collector)
    consumer.acknowledge(collector.wait(1))
    assert collector.bodies == ["1"]
    if connection.capabilities.browse:
        assert connection.first_messages([(queue, blank)]) == [None]


@pytest.mark.parametrize("header", ["JMSDeliveryMode", "JMSMessageID", "JMSXDeliveryCount"])
@pytest.mark.parametrize("lab", ["artemis"], indirect=True)
def test_a_selector_that_would_match_nothing_is_refused(
    connection: Connection, queue: Destination, header: str
) -> None:
    with pytest.raises(CapabilityError, match=f"{header} matches nothing .*: let the sender set a property"):
        connection.consume(Subscription(destination=queue, selector=f"{header} IS NOT NULL"), Collector())


@pytest.mark.parametrize("selector", ["JMSPriority > 6", "JMSTimestamp > 1000", "JMSType = 't'"])
def test_a_selector_on_a_header_selects_or_is_refused(
    connection: Connection, queue: Destination, selector: str
) -> None:
    subscription, collector = Subscription(destination=queue, selector=selector), Collector()
    if not connection.capabilities.selector:
        with pytest.raises(CapabilityError, match="selector"):
            connection.consume(subscription, collector)
        return
    send(connection, queue, JmsMessage.text("x", type="t", priority=7))
    connection.consume(subscription, collector)
    collector.wait(1)


@pytest.mark.parametrize("name", ["type", "priority", "id", "timestamp", "destination"])
def test_a_selector_finds_a_property_that_has_the_name_of_a_header(
    connection: Connection, queue: Destination, name: str
) -> None:
    """STOMP can't carry such a property under its own name."""
    if not connection.capabilities.selector:
        with pytest.raises(CapabilityError, match="selector"):
            connection.consume(Subscription(destination=queue, selector=f"{name} = 'x'"), Collector())
        return
    bodies = {"0": {name: "y"}, "1": {name: "x", "region": "eu"}, "2": {}, "3": {name: "x"}}
    send(connection, queue, *(JmsMessage.text(body, properties) for body, properties in bodies.items()))
    chosen = Collector()
    consumer = connection.consume(
        Subscription(destination=queue, selector=f"{name} = 'x' AND (region IS NULL OR {name} LIKE 'x%')"),
        chosen,
    )
    chosen.wait(2)
    assert [item.message.properties for item in chosen.settle_down()] == [bodies["1"], bodies["3"]]
    consumer.acknowledge(chosen.received)


def test_numbers_are_found_beside_whole_numbers(connection: Connection, queue: Destination) -> None:
    """STOMP makes text of them, and a broker reads text as a number of the literal's kind."""
    if not connection.capabilities.selector:
        return  # refused, as above
    amounts = (2000.5, 1000, 3_000_000_000, 999.5, 2**53 + 1, -1, 1001)
    send(connection, queue, *(JmsMessage.text(str(each), {"amount": each}) for each in amounts))
    chosen = Collector()
    selector = "amount > 1000 AND amount <> 1001 AND amount NOT BETWEEN -1 AND 1"
    consumer = connection.consume(Subscription(destination=queue, selector=selector), chosen)
    chosen.wait(3)
    assert chosen.settle_down() == chosen.received[:3]
    assert chosen.bodies == ["2000.5", "3000000000", str(2**53 + 1)]
    consumer.acknowledge(chosen.received)


def test_a_selector_that_is_none_is_refused(connect: Connect, queue: Destination) -> None:
    connection = connect()
    refused = PermanentBrokerError if connection.capabilities.selector else CapabilityError
    with pytest.raises((refused, ConfigurationError)):
        connection.consume(Subscription(destination=queue, selector="region = = 'eu'"), Collector())


def test_backlog_or_refusal(connection: Connection, connect: Connect, queue: Destination) -> None:
    if not connection.capabilities.backlog:
        with pytest.raises(CapabilityError, match="backlog"):
            connection.backlog(queue)
        return
    assert connection.backlog(queue) == Backlog()
    send(connection, queue, *texts("0", "1", "2"))
    ends = time.monotonic() + DEADLINE  # Artemis counts a moment after it has confirmed
    while (found := connection.backlog(queue)) != Backlog(waiting=3) and time.monotonic() < ends:
        time.sleep(0.02)
    assert found == Backlog(waiting=3)
    collector = Collector()
    connect().consume(Subscription(destination=queue, prefetch=1), collector)
    (received,) = collector.wait(1)
    # A broker that bounds the prefetch in bytes has more on the way.
    held = connection.backlog(queue)
    assert (held.waiting + held.taken, held.consumers) == (3, 1)
    assert received.message.message_id in held.taken_ids
    assert len(held.taken_ids) == held.taken


def test_browse_or_refusal(connection: Connection, connect: Connect, queue: Destination) -> None:
    if not connection.capabilities.browse:
        with pytest.raises(CapabilityError, match="browse"):
            list(connection.browse(queue))
        return
    assert list(connection.browse(queue)) == []
    send(connection, queue, *(JmsMessage.text(str(number), {"n": str(number % 2)}) for number in range(6)))
    assert [message.body for message in connection.browse(queue)] == ["0", "1", "2", "3", "4", "5"]
    if connection.capabilities.selector:
        assert [message.body for message in connection.browse(queue, "n = '1'")] == ["1", "3", "5"]
    collector = Collector()
    consumer = connect().consume(Subscription(destination=queue), collector)
    consumer.acknowledge(collector.wait(6))
    assert collector.bodies == ["0", "1", "2", "3", "4", "5"]


def test_the_first_messages_of_several_queues_or_refusal(connection: Connection, queue: Destination) -> None:
    empty = Destination.queue(f"{queue.name}.empty")
    if not connection.capabilities.browse:
        with pytest.raises(CapabilityError, match="browse"):
            connection.first_messages([(queue, None)])
        return
    send(connection, queue, *(JmsMessage.text(str(number), {"n": number}) for number in range(5)))
    for _ in range(3):  # a look ends what it began: the next one finds the same
        asked = [(queue, None), (empty, None), (queue, "n = 3"), (queue, "n = 9"), (queue, "n = = 1")]
        first, none, third, ninth, wrong = connection.first_messages(asked)
        assert isinstance(first, JmsMessage)
        assert isinstance(third, JmsMessage)
        assert (first.body, none, third.body, ninth) == ("0", None, "3", None)
        assert isinstance(wrong, JmsError)
        assert not isinstance(wrong, TransientBrokerError)
    assert connection.first_messages([]) == []
    collector = Collector()
    connection.consume(Subscription(destination=queue, prefetch=10), collector)
    collector.wait(5)
    assert [received.message.redelivered for received in collector.received] == [False] * 5


def test_topic_reaches_every_subscriber_that_is_there(
    connection: Connection, connect: Connect, topic: Destination
) -> None:
    send(connection, topic, *texts("too early"))
    one, two = Collector(), Collector()
    consumers = [
        connection.consume(Subscription(destination=topic), one),
        connect().consume(Subscription(destination=topic), two),
    ]
    connection.synchronize()
    send(connection, topic, *texts("0", "1"))
    for consumer, collector in zip(consumers, (one, two), strict=True):
        consumer.acknowledge(collector.wait(2))
        assert [item.message.body for item in collector.settle_down()] == ["0", "1"]
        assert collector.messages[0].destination == topic


def test_durable_subscription_or_refusal(
    connection: Connection, connect: Connect, topic: Destination, name: str
) -> None:
    subscription = Subscription(destination=topic, durable_name=f"{name}.sub")
    if not connection.capabilities.durable_subscription:
        with pytest.raises(CapabilityError, match="durable_subscription"):
            connection.consume(subscription, Collector())
        return
    subscriber = connect(client_id=name)
    collector = Collector()
    consumer = subscriber.consume(subscription, collector)
    send(connection, topic, *texts("0"))
    consumer.acknowledge(collector.wait(1))
    subscriber.synchronize()
    subscriber.close()
    send(connection, topic, *texts("1", "2"))

    subscriber = connect(client_id=name)
    collector = Collector()
    consumer = subscriber.consume(subscription, collector)
    consumer.acknowledge(collector.wait(2)[:1])
    subscriber.synchronize()
    assert collector.bodies == ["1", "2"]
    consumer.close()
    subscriber.close()

    subscriber = connect(client_id=name)
    collector = Collector()
    consumer = subscriber.consume(subscription, collector)
    collector.wait(1)
    assert [item.message.body for item in collector.settle_down()] == ["2"]
    consumer.close(delete_durable=True)
    send(connection, topic, *texts("3"))
    collector = Collector()
    consumer = subscriber.consume(subscription, collector)
    assert collector.settle_down() == []
    consumer.close()
    send(connection, topic, *texts("4"))
    subscriber.delete_durable(f"{name}.sub", topic)
    collector = Collector()
    consumer = subscriber.consume(subscription, collector)
    assert collector.settle_down() == []
    consumer.close(delete_durable=True)


def test_a_durable_subscription_needs_a_client_id(
    connection: Connection, topic: Destination, name: str
) -> None:
    if connection.capabilities.durable_subscription:
        with pytest.raises(ConfigurationError, match="client id"):
            connection.consume(Subscription(destination=topic, durable_name=name), Collector())


def test_a_queue_has_no_durable_subscription(connect: Connect, queue: Destination, name: str) -> None:
    connection = connect(client_id=name)
    with pytest.raises(ConfigurationError):
        connection.consume(Subscription(destination=queue, durable_name=name), Collector())


def test_delay_or_refusal(connection: Connection, queue: Destination) -> None:
    """P18."""
    late = Outgoing(destination=queue, message=JmsMessage.text("late"), delay=timedelta(milliseconds=1200))
    later = Outgoing(destination=queue, message=JmsMessage.text("later"), delay=timedelta(milliseconds=2500))
    now = Outgoing(destination=queue, message=JmsMessage.text("now"))
    if not connection.capabilities.delayed_delivery:
        with pytest.raises(CapabilityError, match="delayed_delivery"):
            connection.send([late])
        return
    arrived: dict[object, float] = {}
    began = time.monotonic()

    def note(received: Received) -> None:
        arrived[received.message.body] = time.monotonic() - began
        received.consumer.acknowledge([received])

    collector = Collector(note)
    connection.consume(Subscription(destination=queue), collector)
    connection.send([later, late, now])
    collector.wait(3)
    assert collector.bodies == ["now", "late", "later"]
    assert arrived["late"] >= 1.1  # brokers count from their own clock's tick
    assert arrived["later"] >= 2.4


def test_delay_in_a_unit(connection: Connection, queue: Destination) -> None:
    if not connection.capabilities.delayed_delivery:
        unit = connection.unit()
        with pytest.raises(CapabilityError, match="delayed_delivery"):
            unit.send(Outgoing(destination=queue, message=JmsMessage.text("x"), delay=timedelta(seconds=1)))
        return
    collector = Collector()
    consumer = connection.consume(Subscription(destination=queue), collector)
    unit = connection.unit()
    began = time.monotonic()
    unit.send(Outgoing(destination=queue, message=JmsMessage.text("x"), delay=timedelta(milliseconds=800)))
    unit.commit()
    received = collector.wait(1)
    assert time.monotonic() - began >= 0.7  # brokers count from their own clock's tick
    consumer.acknowledge(received)


def test_what_came_late_can_be_delayed_again(connection: Connection, queue: Destination) -> None:
    """As a listener does it that leaves long delays to the broker."""
    if not connection.capabilities.delayed_delivery:
        return
    collector = Collector()
    consumer = connection.consume(Subscription(destination=queue), collector)
    connection.send([Outgoing(destination=queue, message=JmsMessage.text("x", {"region": "eu"}))])
    for times in range(1, 4):
        received = collector.wait(times)[-1]
        message, count = unparked(received.message)
        assert (count or 0, message.properties) == (times - 1, {"region": "eu"})
        unit = received.unit()
        copy = parked_copy(message, times)
        began = time.monotonic()
        unit.send(Outgoing(destination=queue, message=copy, delay=timedelta(milliseconds=700)))
        unit.acknowledge(received)
        unit.commit()
        collector.wait(times + 1)
        assert time.monotonic() - began >= 0.6, f"delay number {times} is as long as the first"
    consumer.acknowledge(collector.received[-1:])
    connection.synchronize()


def test_deduplication_where_the_broker_has_it(connection: Connection, queue: Destination, name: str) -> None:
    if not connection.capabilities.deduplicating_send:
        with pytest.raises(CapabilityError, match="deduplicating_send"):
            JmsConnection(connection, on_close=lambda: None).session().send(
                queue, JmsMessage.text("first"), deduplication_id=f"{name}-1"
            )
        return
    for body in ("first", "second"):
        connection.send(
            [Outgoing(destination=queue, message=JmsMessage.text(body), deduplication_id=f"{name}-1")]
        )
    connection.send([Outgoing(destination=queue, message=JmsMessage.text("other"), deduplication_id="2")])
    collector = Collector()
    consumer = connection.consume(Subscription(destination=queue), collector)
    collector.wait(2)
    assert [item.message.body for item in collector.settle_down()] == ["first", "other"]
    consumer.acknowledge(collector.received)


def test_two_durable_subscribers_may_move_a_message_to_one_queue(
    connection: Connection, connect: Connect, topic: Destination, queue: Destination, name: str
) -> None:
    """It came to both under one id, and isn't the same: no deduplication may swallow the second."""
    collectors = {each: Collector() for each in ("orders", "billing")}
    subscribers = {each: connect(client_id=f"{name}.{each}") for each in collectors}
    for each, subscriber in subscribers.items():
        subscriber.consume(Subscription(destination=topic, durable_name="news"), collectors[each])
    send(connection, topic, *texts("x"))
    for each in subscribers:
        (received,) = collectors[each].wait(1)
        unit = received.unit()
        unit.acknowledge(received)
        unit.send(Outgoing(destination=queue, message=JmsMessage.text(each)))
        unit.commit()
    moved = Collector(settle)
    connection.consume(Subscription(destination=queue), moved)
    moved.wait(2)
    assert moved.bodies == ["orders", "billing"]
    connection.synchronize()


def test_groups_stay_on_one_consumer_where_the_broker_has_them(
    connection: Connection, connect: Connect, queue: Destination
) -> None:
    collectors = [Collector(settle), Collector(settle)]
    connection.consume(Subscription(destination=queue), collectors[0])
    connect().consume(Subscription(destination=queue), collectors[1])
    connection.synchronize()
    groups = ("a", "b", "c")  # an odd number, or handing out in turns would keep them apart too
    send(
        connection,
        queue,
        *(JmsMessage.text(f"{groups[n % 3]}{n}", {"JMSXGroupID": groups[n % 3]}) for n in range(42)),
    )
    deadline = time.monotonic() + DEADLINE
    while sum(len(one.received) for one in collectors) < 42 and time.monotonic() < deadline:
        time.sleep(0.02)
    seen = [{str(body)[0] for body in one.bodies} for one in collectors]
    assert seen[0] | seen[1] == set(groups)
    assert bool(seen[0] & seen[1]) is not connection.capabilities.message_groups


def test_priority_overtakes_where_the_broker_says_so(connection: Connection, queue: Destination) -> None:
    for priority in (1, 4, 9, 4):
        send(connection, queue, JmsMessage.text(str(priority), priority=priority))
    collector = Collector()
    consumer = connection.consume(Subscription(destination=queue), collector)
    consumer.acknowledge(collector.wait(4))
    in_turn = ["1", "4", "9", "4"]
    assert collector.bodies == (["9", "4", "4", "1"] if connection.capabilities.priority else in_turn)
    assert [message.priority for message in collector.messages] == [int(body) for body in collector.bodies]


def test_an_expired_message_is_not_delivered(connection: Connection, queue: Destination) -> None:
    send(
        connection,
        queue,
        JmsMessage.text("gone", expiration=int((time.time() + 0.3) * 1000)),
        JmsMessage.text("here"),
    )
    time.sleep(0.5)
    collector = Collector()
    consumer = connection.consume(Subscription(destination=queue), collector)
    collector.wait(1)
    assert [item.message.body for item in collector.settle_down()] == ["here"]
    consumer.acknowledge(collector.received)


def test_functions_are_called_in_the_thread_of_the_messages(
    connection: Connection, queue: Destination
) -> None:
    called: SimpleQueue[tuple[str, int]] = SimpleQueue()

    def note(what: str) -> None:
        called.put((what, threading.get_ident()))

    def take(received: Received) -> None:
        connection.call_soon(lambda: note("soon"))
        note("message")
        received.consumer.acknowledge([received])

    consumer = connection.consume(Subscription(destination=queue), take)
    send(connection, queue, *texts("a"))
    found = [called.get(timeout=DEADLINE) for _ in range(2)]
    connection.call_soon(lambda: note("later"))
    found.append(called.get(timeout=DEADLINE))
    consumer.close()
    assert [each for each, _ in found] == ["message", "soon", "later"]
    (thread,) = {each for _, each in found}
    assert thread != threading.get_ident()
