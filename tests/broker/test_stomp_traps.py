"""What brokers were seen to do to STOMP clients, and what this package makes of it."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_jmsjca import (
    ConnectionLostError,
    Destination,
    InDoubtError,
    JmsMessage,
    Outgoing,
    PermanentBrokerError,
    Subscription,
)
from airflow_provider_jmsjca import connect as open_connection
from tests.internals.transports import ConnectionState, Received, StompConnection
from tests.pace import at_most
from tests.servers.broker import Broker
from tests.servers.fixtures import PrivateBroker
from tests.servers.proxy import TcpProxy

DEADLINE = 15.0
Open = Callable[..., StompConnection]


class Inbox:
    """Callback that keeps what comes."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self._changed = threading.Condition()

    def __call__(self, received: Received) -> None:
        with self._changed:
            self.received.append(received)
            self._changed.notify_all()

    def wait(self, count: int) -> list[Received]:
        with self._changed:
            there = self._changed.wait_for(lambda: len(self.received) >= count, DEADLINE)
        assert there, f"{len(self.received)} of {count}"
        return self.received[:count]

    @property
    def bodies(self) -> list[object]:
        return [item.message.body for item in self.received]


@pytest.fixture
def open_to() -> Iterator[Open]:
    opened: list[StompConnection] = []

    def factory(broker: Broker, **overrides: Any) -> StompConnection:
        connection = open_connection(broker.settings(**overrides))
        assert isinstance(connection, StompConnection)
        opened.append(connection)
        return connection

    yield factory
    for connection in opened:
        connection.close()


@pytest.fixture
def queue(queue_name: str) -> Destination:
    return Destination.queue(queue_name)


def outgoing(queue: Destination, *bodies: str) -> list[Outgoing]:
    return [Outgoing(destination=queue, message=JmsMessage.text(body)) for body in bodies]


def raw_send(broker: Broker, *lines: str, body: str | bytes = "forged") -> None:
    """Send one message as a producer that forges headers would."""
    settings = broker.settings()
    with socket.create_connection(broker.address(), 5) as sock:
        sock.sendall(
            f"CONNECT\naccept-version:1.2\nhost:/\nlogin:{settings.username}\n"
            f"passcode:{settings.password}\n\n\0".encode()
        )
        assert sock.recv(4096).startswith(b"CONNECTED")
        octets = body if isinstance(body, bytes) else body.encode()
        sock.sendall("\n".join(["SEND", *lines, "receipt:done", "", ""]).encode() + octets + b"\0")
        assert b"receipt-id:done" in sock.recv(4096)


def test_forged_headers_change_nothing(broker: Broker, open_to: Open, queue: Destination) -> None:
    connection = open_to(broker)
    raw_send(
        broker,
        f"destination:{connection.link.dialect.destination(queue)}",
        "destination-type:ANYCAST",
        "ack:fake",
        "subscription:fake",
        "redelivered:true",
        "persistent:true",
    )
    inbox = Inbox()
    consumer = connection.consume(Subscription(destination=queue), inbox)
    (received,) = inbox.wait(1)
    assert received.message.redelivered is False
    assert "receipt" not in received.message.properties
    consumer.acknowledge([received])
    connection.synchronize()
    consumer.close()
    after = Inbox()
    connection.consume(Subscription(destination=queue), after)
    connection.send(outgoing(queue, "next"))
    after.wait(1)
    assert after.bodies == ["next"]


def test_a_unit_beyond_the_page_size_does_not_stall(
    activemq: Broker, open_to: Open, queue: Destination
) -> None:
    connection = open_to(activemq)
    connection.send(outgoing(queue, *map(str, range(1000))))
    unit, inbox = connection.unit(), Inbox()

    def acknowledge(received: Received) -> None:
        unit.acknowledge(received)
        inbox(received)

    began = time.monotonic()
    connection.consume(Subscription(destination=queue, prefetch=1000), acknowledge)
    inbox.wait(1000)
    unit.commit()
    assert time.monotonic() - began < at_most(10)


def test_a_bad_acknowledgement_in_a_transaction_fails_the_commit(
    activemq: Broker, open_to: Open, queue: Destination
) -> None:
    connection = open_to(activemq)
    unit = connection.unit()
    unit.send(outgoing(queue, "must not be there")[0])
    connection.link.wire.write(b"ACK\nid:nonsense\ntransaction:t1\n\n\0")
    with pytest.raises(PermanentBrokerError, match="refused a part of the unit"):
        unit.commit()
    assert connection.state is ConnectionState.UP
    assert list(connection.browse(queue)) == []


def ask_for_nonsense(connection: StompConnection, patch: pytest.MonkeyPatch) -> None:
    """Let each SUBSCRIBE have a selector that the broker refuses; ours are checked before they are sent."""
    dialect = type(connection.link.dialect)
    subscribe = dialect.subscribe
    patch.setattr(dialect, "subscribe", lambda *given: subscribe(*given) | {"selector": "a = = b"})


def test_errors_in_one_unit_leave_the_connection_usable(
    activemq: Broker, open_to: Open, queue: Destination, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = open_to(activemq)
    ask_for_nonsense(connection, monkeypatch)
    with pytest.raises(PermanentBrokerError, match=r"(?i)selector"):
        connection.consume(Subscription(destination=queue), Inbox())
    assert connection.send(outgoing(queue, "x")) == 1


def test_a_refused_subscription_says_why_although_the_connection_ends(
    artemis: Broker, open_to: Open, queue: Destination, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = open_to(artemis)
    ask_for_nonsense(connection, monkeypatch)
    with pytest.raises(PermanentBrokerError, match=r"(?i)selector"):
        connection.consume(Subscription(destination=queue), Inbox())


def test_a_commit_that_gets_no_answer_is_in_doubt(broker: Broker, open_to: Open, queue: Destination) -> None:
    with TcpProxy(broker.address()) as proxy:
        connection = open_to(broker, hosts=(proxy.address,), heart_beat=timedelta(0))
        unit = connection.unit()
        unit.send(outgoing(queue, "x")[0])
        # On ActiveMQ the last step before COMMIT must pass, so the line freezes after that.
        if connection.capabilities.atomic_commit:
            freeze_at_commit(connection, proxy)
        else:
            freeze(proxy)
        cutter = threading.Timer(0.5, proxy.cut)
        cutter.start()
        with pytest.raises(InDoubtError):
            unit.commit()
        cutter.join()
        assert connection.state is ConnectionState.LOST


def freeze(proxy: TcpProxy) -> None:
    proxy.freeze()
    time.sleep(0.5)  # it looks at its switch a few times in a second, and forwards until then


def freeze_at_commit(connection: StompConnection, proxy: TcpProxy) -> None:
    append = connection.link.wire.append

    def watch(data: bytes) -> bool:
        if data.startswith(b"COMMIT"):
            freeze(proxy)
        return append(data)

    connection.link.wire.append = watch


def test_a_receipt_that_does_not_come_ends_the_connection(
    broker: Broker, open_to: Open, queue: Destination
) -> None:
    with TcpProxy(broker.address()) as proxy:
        connection = open_to(
            broker,
            hosts=(proxy.address,),
            heart_beat=timedelta(0),
            reply_timeout=timedelta(seconds=1),
        )
        freeze(proxy)
        began = time.monotonic()
        with pytest.raises(InDoubtError, match="no receipt for 1 s"):
            connection.send(outgoing(queue, "x"))
        assert time.monotonic() - began < 1 + at_most(2)
        assert connection.state is ConnectionState.LOST


def test_a_stopped_broker_is_noticed_within_three_beats(private_broker: PrivateBroker, open_to: Open) -> None:
    for kind in ("activemq", "artemis", "rabbitmq"):
        broker = private_broker(kind)
        connection = open_to(broker, heart_beat=timedelta(seconds=1))
        told: list[float] = []
        lost = threading.Event()

        def note(_: object, told: list[float] = told, lost: threading.Event = lost) -> None:
            told.append(time.monotonic())
            lost.set()

        connection.on_lost(note)
        began = time.monotonic()
        broker.suspend()
        try:
            assert lost.wait(10), f"{kind} was not noticed"
            assert told[0] - began < 3 + at_most(0.2)
        finally:
            broker.resume()
        broker.stop()


def test_a_connection_without_heart_beats_outlives_the_time_artemis_grants(
    private_broker: PrivateBroker, open_to: Open
) -> None:
    # The broker cuts a client that never promised a sign of life; a promise is made in any case.
    connection = open_to(private_broker("artemis"), heart_beat=timedelta(0))
    lost = threading.Event()
    connection.on_lost(lambda _: lost.set())
    assert not lost.wait(65)
    connection.synchronize()


def test_receipts_do_not_wait_for_delayed_acknowledgements(broker: Broker, open_to: Open) -> None:
    connection = open_to(broker)
    began = time.monotonic()
    for _ in range(50):
        connection.synchronize()
    assert time.monotonic() - began < at_most(1.5)  # 44 ms each would be 2.2 s


def test_an_acknowledgement_leaves_by_itself(broker: Broker, open_to: Open, queue: Destination) -> None:
    connection, inbox = open_to(broker), Inbox()
    connection.send(outgoing(queue, *map(str, range(20))))
    consumer = connection.consume(Subscription(destination=queue, prefetch=1), inbox)
    waits = []
    for count in range(1, 21):
        began = time.monotonic()
        inbox.wait(count)
        waits.append(time.monotonic() - began)
        consumer.acknowledge(inbox.received[-1:])
    assert sorted(waits)[10] < at_most(0.1)


def test_rabbitmq_gets_everything_back_when_a_consumer_closes(
    rabbitmq: Broker, open_to: Open, queue: Destination
) -> None:
    connection, held = open_to(rabbitmq), Inbox()
    connection.send(outgoing(queue, *map(str, range(300))))
    consumer = connection.consume(Subscription(destination=queue, prefetch=200), held)
    held.wait(200)
    consumer.acknowledge(held.received[:50])
    consumer.close()
    rest = Inbox()
    other = open_to(rabbitmq).consume(Subscription(destination=queue), rest)
    rest.wait(250)
    other.acknowledge(rest.received)
    assert sorted(map(int, map(str, rest.bodies))) == list(range(50, 300))


def test_what_rabbitmq_swallows_when_a_consumer_closes_comes_back(
    rabbitmq: Broker, open_to: Open, queue: Destination
) -> None:
    # A message on its way to a consumer that ends is answered with an ERROR and stays unacknowledged.
    connection, total = open_to(rabbitmq), 3000
    publisher = open_to(rabbitmq)
    thread = threading.Thread(target=publisher.send, args=(outgoing(queue, *map(str, range(total))),))
    thread.start()
    seen: set[object] = set()
    deadline = time.monotonic() + 60
    while len(seen) < total and time.monotonic() < deadline:
        inbox = Inbox()
        consumer = connection.consume(Subscription(destination=queue, prefetch=50), inbox)
        inbox.wait(1)
        settled = list(inbox.received)
        consumer.acknowledge(settled)
        seen |= {item.message.body for item in settled}
        consumer.close()
    thread.join()
    assert len(seen) == total
    assert connection.state is ConnectionState.UP


def test_what_rabbitmq_swallows_when_a_consumer_closes_is_in_its_place_when_close_returns(
    rabbitmq: Broker, open_to: Open, queue: Destination
) -> None:
    connection, other = open_to(rabbitmq), open_to(rabbitmq)
    late = 0
    for _ in range(150):  # the next message is on its way to the consumer in half of them
        connection.send(outgoing(queue, *"012345"))
        inbox, rest = Inbox(), Inbox()
        consumer = connection.consume(Subscription(destination=queue, prefetch=1), inbox)
        consumer.acknowledge(inbox.wait(1))
        consumer.close()
        successor = other.consume(Subscription(destination=queue), rest)
        taken = rest.wait(5)
        assert sorted(rest.bodies) == [*"12345"]
        late += rest.bodies != [*"12345"]
        successor.acknowledge(taken)
        other.synchronize()
        successor.close()
    # The broker's own processes decide, and a busy machine may hold one of them up: see `Orphans.hand_back`.
    assert late <= 5


def test_what_a_plain_topic_consumer_holds_survives_recover(
    broker: Broker, open_to: Open, queue_name: str
) -> None:
    connection, inbox, topic = open_to(broker), Inbox(), Destination.topic(queue_name)
    consumer = connection.consume(Subscription(destination=topic), inbox)
    connection.send(outgoing(topic, "0", "1", "2"))
    inbox.wait(3)
    consumer.acknowledge(inbox.received[:1])
    consumer.recover()
    inbox.wait(5)
    assert inbox.bodies == ["0", "1", "2", "1", "2"]
    assert [item.message.redelivered for item in inbox.received] == [False] * 3 + [True] * 2


def test_large_messages(broker: Broker, open_to: Open, queue: Destination) -> None:
    connection, inbox = open_to(broker), Inbox()
    body = "0123456789abcdef" * (10 * 1024 * 1024 // 16)
    connection.send(outgoing(queue, body))
    consumer = connection.consume(Subscription(destination=queue), inbox)
    (received,) = inbox.wait(1)
    assert received.message.body == body
    consumer.acknowledge([received])
    connection.synchronize()


def test_no_password_in_the_log(broker: Broker, open_to: Open, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        open_to(broker).close()
    assert broker.settings().password not in caplog.text


def test_artemis_drops_the_second_send_of_a_repeated_move(
    artemis: Broker, open_to: Open, queue: Destination
) -> None:
    target = Destination.queue(f"{queue.name}.target")
    first, inbox = open_to(artemis), Inbox()
    first.send(outgoing(queue, "x"))
    first.consume(Subscription(destination=queue), inbox)
    # The crash between the confirmed send and the acknowledgement: the message is sent, and comes again.
    (received,) = inbox.wait(1)
    identifier = f"{received.message.message_id}>{queue}>{target}#0"
    first.send([Outgoing(destination=target, message=received.message, deduplication_id=identifier)])
    first.link.give_up(ConnectionLostError("crash"))

    second, again = open_to(artemis), Inbox()
    second.consume(Subscription(destination=queue), again)
    (received,) = again.wait(1)
    unit = second.unit()
    unit.send(Outgoing(destination=target, message=received.message))
    unit.acknowledge(received)
    unit.commit()
    moved = Inbox()
    second.send(outgoing(target, "end"))
    consumer = second.consume(Subscription(destination=target), moved)
    moved.wait(2)
    assert moved.bodies == ["x", "end"]
    consumer.acknowledge(moved.received)
