from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.errors import (
    AuthenticationError,
    ClientIdInUseError,
    ConfigurationError,
    ConnectionLostError,
    PermanentBrokerError,
    TransientBrokerError,
)
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import (
    Connection,
    ConnectionSettings,
    Outgoing,
    Received,
    Subscription,
)
from airflow_provider_jmsjca.transports.memory import MemoryBroker as Broker
from airflow_provider_jmsjca.transports.memory import memory_broker as broker
from airflow_provider_jmsjca.transports.memory.connection import MemoryConnection
from tests.unit.transports.memory.arrivals import Arrivals

QUEUE = Destination.queue("q")
TOPIC = Destination.topic("t")
EPOCH = 1_700_000_000.0


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Broker:
    return Broker(request.node.name, clock=lambda: EPOCH)


def settings(server: Broker, **overrides: object) -> ConnectionSettings:
    made = ConnectionSettings(scheme="vm", hosts=((server.name, None),))
    return replace(made, **overrides)


@pytest.fixture
def connection(server: Broker) -> Iterator[Connection]:
    opened = MemoryConnection(server, settings(server))
    yield opened
    opened.close()


def send(connection: Connection, *bodies: str, to: Destination = QUEUE, **headers: object) -> None:
    connection.send(
        Outgoing(destination=to, message=JmsMessage.text(body, **headers))  # type: ignore[arg-type]  # headers by name
        for body in bodies
    )


def test_one_broker_for_each_name() -> None:
    assert broker("same") is broker("same")
    assert broker("same") is not broker("other")


def test_depth_and_messages_show_what_is_unsettled_too(server: Broker, connection: Connection) -> None:
    send(connection, "0", "1")
    arrivals = Arrivals()
    consumer = connection.consume(Subscription(destination=QUEUE), arrivals)
    received = arrivals.wait(2)
    assert [message.body for message in server.messages("q")] == ["0", "1"]
    consumer.acknowledge(received[:1])
    assert server.depth("q") == 1
    assert server.depth("never used") == 0


def test_the_broker_stamps_id_destination_and_time(server: Broker, connection: Connection) -> None:
    send(connection, "0", "1", message_id="mine", timestamp=1)
    first, second = server.messages("q")
    assert first.timestamp == 1_700_000_000_000
    assert first.destination == QUEUE
    assert first.message_id != "mine"
    assert first.message_id != second.message_id


def test_the_message_is_the_brokers_own(server: Broker, connection: Connection) -> None:
    body: dict[str, int] = {"n": 1}
    properties = {"region": "eu"}
    message = JmsMessage(body_kind=JmsMessage.map({}).body_kind, body=body, properties=properties)
    connection.send([Outgoing(destination=QUEUE, message=message)])
    body["n"] = 2
    properties["region"] = "us"
    (kept,) = server.messages("q")
    assert (kept.body, dict(kept.properties)) == ({"n": 1}, {"region": "eu"})


def test_kill_loses_connections_and_non_persistent_messages(server: Broker, connection: Connection) -> None:
    send(connection, "kept")
    send(connection, "lost", persistent=False)
    server.kill()
    assert server.connections == 0
    assert [message.body for message in server.messages("q")] == ["kept"]
    with pytest.raises(ConnectionLostError, match="killed"):
        connection.synchronize()
    with pytest.raises(TransientBrokerError, match="is down"):
        MemoryConnection(server, settings(server))
    server.restart()
    MemoryConnection(server, settings(server)).close()


def test_restart_alone_loses_connections_too(server: Broker, connection: Connection) -> None:
    server.restart()
    with pytest.raises(ConnectionLostError):
        connection.synchronize()
    assert server.connections == 0


def test_clear_forgets_messages_and_rules_but_keeps_connections(
    server: Broker, connection: Connection
) -> None:
    send(connection, "0")
    connection.send([Outgoing(destination=QUEUE, message=JmsMessage.text("late"), delay=timedelta(hours=1))])
    server.require_login("u", "p")
    server.forbid(QUEUE)
    server.clear()
    assert (server.depth("q"), server.delayed(), server.connections) == (0, [], 1)
    send(connection, "1")
    MemoryConnection(server, settings(server)).close()


def test_a_delay_ends_when_the_clock_is_advanced(server: Broker, connection: Connection) -> None:
    for body, hours in (("two", 2), ("one", 1)):
        connection.send(
            [Outgoing(destination=QUEUE, message=JmsMessage.text(body), delay=timedelta(hours=hours))]
        )
    arrivals = Arrivals()
    connection.consume(Subscription(destination=QUEUE), arrivals)
    assert [message.body for message in server.delayed()] == ["one", "two"]
    server.advance(timedelta(minutes=59))
    assert server.depth("q") == 0
    server.advance(timedelta(minutes=1))
    assert arrivals.bodies(1) == ["one"]
    server.advance(timedelta(hours=1))
    assert arrivals.bodies(2) == ["one", "two"]
    assert server.delayed() == []


def test_messages_expire_on_the_brokers_clock(server: Broker, connection: Connection) -> None:
    send(connection, "short", expiration=int(EPOCH * 1000) + 60_000)
    send(connection, "long")
    assert server.depth("q") == 2
    server.advance(timedelta(seconds=60))
    arrivals = Arrivals()
    connection.consume(Subscription(destination=QUEUE), arrivals)
    assert arrivals.bodies(1) == ["long"]
    assert [message.body for message in server.messages("q")] == ["long"]


def test_wrong_credentials_are_refused_without_the_password(server: Broker) -> None:
    server.require_login("app", "right")
    for username, password in (("app", "wr0ng-s3cret"), ("nobody", "right"), (None, None), ("app", None)):
        with pytest.raises(AuthenticationError) as refused:
            MemoryConnection(server, settings(server, username=username, password=password))
        assert "s3cret" not in str(refused.value)
    MemoryConnection(server, settings(server, username="app", password="right")).close()


def test_a_client_id_belongs_to_one_connection(server: Broker) -> None:
    first = MemoryConnection(server, settings(server, client_id="c"))
    with pytest.raises(ClientIdInUseError, match="client id 'c' is in use"):
        MemoryConnection(server, settings(server, client_id="c"))
    first.close()
    MemoryConnection(server, settings(server, client_id="c")).close()


def test_forbidden_destinations(server: Broker, connection: Connection) -> None:
    server.forbid(QUEUE)
    with pytest.raises(PermanentBrokerError, match="queue://q"):
        send(connection, "x")
    with pytest.raises(PermanentBrokerError, match="queue://q"):
        connection.consume(Subscription(destination=QUEUE), Arrivals())
    server.permit(QUEUE)
    send(connection, "x")


def test_another_selector_replaces_a_durable_subscription(server: Broker, connection: Connection) -> None:
    subscriber = MemoryConnection(server, settings(server, client_id="c"))
    eu = Subscription(destination=TOPIC, durable_name="d", selector="region = 'eu'")
    subscriber.consume(eu, Arrivals()).close()
    send(connection, "eu", to=TOPIC, properties={"region": "eu"})
    us = replace(eu, selector="region = 'us'")
    arrivals = Arrivals()
    consumer = subscriber.consume(us, arrivals)
    send(connection, "us", to=TOPIC, properties={"region": "us"})
    assert arrivals.bodies(1) == ["us"]
    with pytest.raises(PermanentBrokerError, match="'d' is in use"):
        subscriber.consume(us, Arrivals())
    with pytest.raises(PermanentBrokerError, match="'d' is in use"):
        subscriber.delete_durable("d", TOPIC)
    consumer.close()
    subscriber.close()


def test_message_groups_move_to_another_consumer_when_theirs_leaves(
    server: Broker, connection: Connection
) -> None:
    one, two = Arrivals(), Arrivals()
    first = connection.consume(Subscription(destination=QUEUE), one)
    send(connection, "0", properties={"JMSXGroupID": "g"})
    first.acknowledge(one.wait(1))
    connection.consume(Subscription(destination=QUEUE), two)
    send(connection, "1", "2", properties={"JMSXGroupID": "g"})
    assert one.bodies(3) == ["0", "1", "2"]
    first.close()
    assert two.bodies(2) == ["1", "2"]
    assert server.depth("q") == 2


def test_handed_back_messages_go_in_front_of_younger_ones(connection: Connection) -> None:
    send(connection, "0", "1")
    first = connection.consume(Subscription(destination=QUEUE, prefetch=2), Arrivals())
    send(connection, "2", "3")
    first.close()
    arrivals = Arrivals()
    connection.consume(Subscription(destination=QUEUE), arrivals)
    assert arrivals.bodies(4) == ["0", "1", "2", "3"]


def test_what_was_set_aside_and_never_handed_over_does_not_count(connection: Connection) -> None:
    """As with the brokers: only a delivery leaves a mark."""
    send(connection, "0", "1")
    came = threading.Event()

    def hand_back(received: Received) -> None:
        came.set()
        received.consumer.close()

    connection.consume(Subscription(destination=QUEUE, prefetch=2), hand_back)
    assert came.wait(5)
    arrivals = Arrivals()
    connection.consume(Subscription(destination=QUEUE), arrivals)
    messages = [received.message for received in arrivals.wait(2)]
    assert [(each.body, each.redelivered, each.delivery_count) for each in messages] == [
        ("0", True, 2),
        ("1", False, 1),
    ]


def test_a_thousand_idle_connections_and_consumers_need_no_thread(server: Broker) -> None:
    before = set(threading.enumerate())
    connections = [MemoryConnection(server, settings(server)) for _ in range(1000)]
    for number, connection in enumerate(connections):
        connection.consume(Subscription(destination=Destination.queue(f"q{number}")), Arrivals())
    assert not set(threading.enumerate()) - before  # some of other tests' may have ended
    for connection in connections:
        connection.close()
    assert server.connections == 0


def test_a_connection_can_be_closed_in_its_own_callback(server: Broker, connection: Connection) -> None:
    closed = threading.Event()

    def close(_received: object) -> None:
        connection.close()
        closed.set()

    connection.consume(Subscription(destination=QUEUE), close)
    send(connection, "0")
    assert closed.wait(5)
    assert server.depth("q") == 1


def test_urls_without_a_name_are_refused() -> None:
    for hosts in ((), (("", None),)):
        with pytest.raises(ConfigurationError, match="vm://test"):
            connect(ConnectionSettings(scheme="vm", hosts=hosts))


def test_the_first_broker_that_is_up_is_taken() -> None:
    broker("down").kill()
    try:
        opened = connect(ConnectionSettings(scheme="vm", hosts=(("down", None), ("up", None))))
        assert opened.broker.address == "up"
        opened.close()
        with pytest.raises(TransientBrokerError, match="vm://down is down"):
            connect(ConnectionSettings(scheme="vm", hosts=(("down", None),)))
    finally:
        broker("down").restart()


def test_a_unit_refuses_options_of_another_broker_when_it_is_asked_to_send(
    server: Broker, connection: Connection
) -> None:
    send(connection, "0")
    arrivals = Arrivals()
    connection.consume(Subscription(destination=QUEUE), arrivals)
    (received,) = arrivals.wait(1)
    unit = connection.unit()
    unit.acknowledge(received)
    quorum = replace(Destination.queue("out"), options=(("x-queue-type", "quorum"),))
    with pytest.raises(ConfigurationError, match="x-queue-type is not an option"):
        unit.send(Outgoing(destination=quorum, message=JmsMessage.text("x")))
    unit.commit()
    assert (server.depth("q"), server.depth("out")) == (0, 0)
