"""Sessions over the in-process broker; JMS 2.0 chapter 6."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.engine.connecting.pool import Usage
from airflow_provider_jmsjca.engine.session.connection import JmsConnection
from airflow_provider_jmsjca.engine.session.inbox import Inbox
from airflow_provider_jmsjca.engine.session.session import AcknowledgeMode, JmsSession
from airflow_provider_jmsjca.errors import (
    CapabilityError,
    ConfigurationError,
    ConnectionLostError,
    PermanentBrokerError,
    PoisonMessageError,
)
from airflow_provider_jmsjca.transports.base import (
    Capabilities,
    Consumer,
    OnReceived,
    Outgoing,
    Received,
    Subscription,
)
from airflow_provider_jmsjca.transports.memory import MemoryBroker as Broker
from tests.pace import at_most
from tests.unit.engine.brokers import LesserConnection

QUEUE = Destination.queue("orders")
TOPIC = Destination.topic("news")


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Broker:
    return Broker(request.node.name)


@pytest.fixture
def wire(server: Broker) -> LesserConnection:
    return LesserConnection(server)


@pytest.fixture
def connection(wire: LesserConnection) -> Iterator[JmsConnection]:
    with JmsConnection(wire) as opened:
        yield opened


def fill(connection: JmsConnection, count: int, destination: Destination = QUEUE) -> list[str]:
    bodies = [str(number) for number in range(count)]
    with connection.session() as session:
        for body in bodies:
            session.send(destination, JmsMessage.text(body))
    return bodies


def drain(session: JmsSession, count: int, destination: Destination = QUEUE) -> list[object]:
    bodies = []
    for _ in range(count):
        message = session.receive(destination, timeout=5)
        assert message is not None
        bodies.append(message.body)
    return bodies


def test_the_snippet_of_the_documentation(connection: JmsConnection) -> None:
    with connection.session(transacted=True) as session:
        session.send(Destination.queue("orders"), JmsMessage.text("hello", properties={"region": "eu"}))
        session.commit()
        message = session.receive(Destination.queue("orders"), timeout=5, selector="region = 'eu'")
        assert message is not None
        assert message.body == "hello"
        session.commit()
        assert session.receive("queue://orders", timeout=0) is None


def test_auto_settles_when_receive_returns(
    server: Broker, connection: JmsConnection, wire: LesserConnection
) -> None:
    fill(connection, 3)
    with connection.session() as session:
        assert drain(session, 2) == ["0", "1"]
        assert [message.body for message in server.messages("orders")] == ["2"]
        assert wire.synchronized >= 2


def test_auto_hands_over_a_message_whose_confirmation_is_lost(
    server: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker may have let go of it: it would be neither here nor there."""

    class Breaking(LesserConnection):
        def synchronize(self) -> None:
            self.synchronized += 1
            if not server.depth("orders"):
                server.restart()
            super().synchronize()

    with JmsConnection(LesserConnection(server)) as connection:
        fill(connection, 1)
    with JmsConnection(Breaking(server)) as connection:
        session = connection.session()
        assert drain(session, 1) == ["0"]
        with pytest.raises(ConnectionLostError):
            session.receive(QUEUE, timeout=0)
    assert "may be redelivered: the connection to vm://" in caplog.text


def test_dups_ok_does_not_wait_for_the_broker(connection: JmsConnection, wire: LesserConnection) -> None:
    fill(connection, 3)
    with connection.session(acknowledge_mode=AcknowledgeMode.DUPS_OK) as session:
        drain(session, 3)
        assert wire.synchronized == 0
    assert wire.synchronized == 1


def test_client_mode_settles_everything_received_so_far(server: Broker, connection: JmsConnection) -> None:
    fill(connection, 4)
    with connection.session(acknowledge_mode=AcknowledgeMode.CLIENT) as session:
        drain(session, 2)
        assert server.depth("orders") == 4
        session.acknowledge()
        assert server.depth("orders") == 2
        drain(session, 1)
    assert [message.body for message in server.messages("orders")] == ["2", "3"]


def test_recover_delivers_again_in_order_as_redelivered(connection: JmsConnection) -> None:
    fill(connection, 3)
    with connection.session(acknowledge_mode=AcknowledgeMode.CLIENT) as session:
        drain(session, 2)
        session.recover()
        message = session.receive(QUEUE, timeout=5)
        assert message is not None
        assert (message.body, message.redelivered, message.delivery_count) == ("0", True, 2)
        assert drain(session, 2) == ["1", "2"]


class OneIdConnection(LesserConnection):
    """A connection whose broker gives all messages one id, and doesn't say that one comes again."""

    def consume(self, subscription: Subscription, on_received: OnReceived) -> Consumer:
        def changed(received: Received) -> None:
            message = replace(received.message, message_id="1", redelivered=False)
            on_received(Received(received.consumer, received.token, received.generation, lambda: message))

        return super().consume(subscription, changed)


def test_what_was_handed_back_is_known_by_more_than_its_id(server: Broker) -> None:
    with JmsConnection(OneIdConnection(server)) as connection:
        fill(connection, 3)
        with connection.session(acknowledge_mode=AcknowledgeMode.CLIENT) as session:
            drain(session, 2)
            session.recover()
            again = [session.receive(QUEUE, timeout=5) for _ in range(3)]
    assert [(each.body, each.redelivered) for each in again if each is not None] == [
        ("0", True),
        ("1", True),
        ("2", False),
    ]


def test_how_many_handed_back_messages_are_known_is_bounded(
    server: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_provider_jmsjca.engine.session.session.REMEMBERED", 1)
    with JmsConnection(OneIdConnection(server)) as connection:
        fill(connection, 2)
        with connection.session(acknowledge_mode=AcknowledgeMode.CLIENT) as session:
            drain(session, 2)
            session.recover()
            again = [session.receive(QUEUE, timeout=5) for _ in range(2)]
    assert [each.redelivered for each in again if each is not None] == [False, True]


@pytest.mark.parametrize("count", [1, 2, 7, 100])
def test_rollback_makes_messages_come_again_in_order(connection: JmsConnection, count: int) -> None:
    bodies = fill(connection, count + 3)
    with connection.session(transacted=True) as session:
        assert drain(session, count) == bodies[:count]
        session.rollback()
        assert drain(session, count + 3) == bodies
        session.commit()
        assert session.receive(QUEUE, timeout=0) is None


def test_sends_of_a_transaction_are_there_after_commit_only(
    server: Broker, connection: JmsConnection
) -> None:
    with connection.session(transacted=True) as session:
        session.send("orders", JmsMessage.text("kept"))
        assert server.depth("orders") == 0
        session.commit()
        session.send("orders", JmsMessage.text("forgotten"))
        session.rollback()
        session.send("orders", JmsMessage.text("never committed"))
    assert [message.body for message in server.messages("orders")] == ["kept"]


def test_closing_rolls_back_and_gives_back_what_was_not_read(
    server: Broker, connection: JmsConnection
) -> None:
    bodies = fill(connection, 6)
    session = connection.session(transacted=True, prefetch=4)
    drain(session, 2)
    session.close()
    session.close()
    with connection.session() as other:
        assert drain(other, 6) == bodies
    assert server.depth("orders") == 0


def test_a_poller_leaves_the_other_messages_to_others(connection: JmsConnection) -> None:
    fill(connection, 4)
    with connection.session() as one, connection.session() as other:
        assert drain(one, 1) == ["0"]
        assert drain(other, 2) == ["2", "3"]


def test_a_session_subscribes_once_with_a_prefetch_that_suits_its_mode(
    connection: JmsConnection, wire: LesserConnection
) -> None:
    for session in (
        connection.session(),
        connection.session(acknowledge_mode=AcknowledgeMode.DUPS_OK),
        connection.session(acknowledge_mode=AcknowledgeMode.CLIENT),
        connection.session(transacted=True),
        connection.session(transacted=True, prefetch=7),
    ):
        session.receive(QUEUE, timeout=0)
        session.receive(QUEUE, timeout=0)
        session.close()
    assert [subscription.prefetch for subscription in wire.subscribed] == [1, 100, 100, 100, 7]


def test_a_session_that_holds_as_much_as_its_prefetch_says_so_instead_of_nothing(
    connection: JmsConnection,
) -> None:
    bodies = fill(connection, 101)
    with connection.session(acknowledge_mode=AcknowledgeMode.CLIENT) as session:
        assert drain(session, 100) == bodies[:100]
        with pytest.raises(ConfigurationError, match="100 messages of queue://orders are unsettled"):
            session.receive(QUEUE, timeout=0)
        session.acknowledge()
        assert drain(session, 1) == bodies[100:]


def test_a_topic_session_that_holds_too_much_says_so(connection: JmsConnection) -> None:
    with connection.session(acknowledge_mode=AcknowledgeMode.CLIENT, prefetch=2) as session:
        assert session.receive(TOPIC, timeout=0) is None
        fill(connection, 3, TOPIC)
        assert drain(session, 2, TOPIC) == ["0", "1"]
        with pytest.raises(ConfigurationError, match="2 messages of topic://news are unsettled"):
            session.receive(TOPIC, timeout=0.1)
        session.acknowledge()
        assert drain(session, 1, TOPIC) == ["2"]


def test_a_durable_subscription_outlives_the_session(server: Broker) -> None:
    with JmsConnection(LesserConnection(server, client_id="c")) as connection:
        with connection.session() as session:
            assert session.receive(TOPIC, timeout=0, subscription_name="audit") is None
        fill(connection, 2, TOPIC)
        with connection.session() as session:
            first = session.receive(TOPIC, timeout=5, subscription_name="audit")
            second = session.receive(TOPIC, timeout=5, subscription_name="audit")
            assert first is not None
            assert second is not None
            assert (first.body, second.body) == ("0", "1")


def test_receive_waits_no_longer_than_told(connection: JmsConnection) -> None:
    with connection.session() as session:
        began = time.monotonic()
        assert session.receive(QUEUE, timeout=0.3) is None
        assert 0.3 <= time.monotonic() - began < at_most(2)
        began = time.monotonic()
        assert session.receive(QUEUE, timeout=0) is None
        assert time.monotonic() - began < at_most(2)


def test_a_lost_connection_wakes_who_waits(server: Broker, connection: JmsConnection) -> None:
    session = connection.session(transacted=True)
    fill(connection, 1)
    drain(session, 1)
    timer = threading.Timer(0.2, server.restart)
    timer.start()
    began = time.monotonic()
    with pytest.raises(ConnectionLostError, match="killed"):
        session.receive(QUEUE, timeout=20)
    assert time.monotonic() - began < 5
    timer.join()
    with pytest.raises(ConnectionLostError):
        session.commit()
    session.close()
    assert server.depth("orders") == 1


def test_a_refused_commit_rolls_everything_back(server: Broker, connection: JmsConnection) -> None:
    fill(connection, 2)
    server.forbid(Destination.queue("secret"))
    with connection.session(transacted=True) as session:
        drain(session, 1)
        session.send("secret", JmsMessage.text("x"))
        with pytest.raises(PermanentBrokerError, match="queue://secret"):
            session.commit()
        assert drain(session, 2) == ["0", "1"]
        session.commit()
    assert server.depth("orders") == 0


@pytest.mark.parametrize("given", ["text", b"octets", None])
def test_what_is_no_message_is_refused(connection: JmsConnection, given: object) -> None:
    with (
        connection.session() as session,
        pytest.raises(ConfigurationError, match=rf"^message: got a {type(given).__name__}, expected a JmsM"),
    ):
        session.send(QUEUE, given, priority=5)  # type: ignore[arg-type]  # what is tested


def test_send_sets_what_is_asked_for_and_leaves_the_message(
    server: Broker, connection: JmsConnection
) -> None:
    message = JmsMessage.text("x", priority=3)
    with connection.session() as session:
        before = time.time()
        session.send(QUEUE, message, time_to_live=60, priority=8, persistent=False)
        session.send(QUEUE, message, deduplication_id="d")
        session.send(QUEUE, message, deduplication_id="d")
        session.send(QUEUE, message, delay=3600)
    first, second = server.messages("orders")
    assert (first.priority, first.persistent) == (8, False)
    assert abs(first.expiration - (before + 60) * 1000) < 1000
    assert (second.priority, second.persistent, second.expiration) == (3, True, 0)
    assert (message.priority, message.persistent, message.expiration) == (3, True, 0)
    assert len(server.delayed()) == 1
    server.advance(timedelta(hours=1))
    assert server.depth("orders") == 2  # the first has expired meanwhile


def test_browse_takes_nothing(server: Broker, connection: JmsConnection) -> None:
    """J11."""
    fill(connection, 3)
    with connection.session() as session:
        assert [message.body for message in session.browse("queue://orders")] == ["0", "1", "2"]
        assert list(session.browse(QUEUE, "region = 'eu'")) == []
    assert server.depth("orders") == 3


@pytest.mark.parametrize(
    ("capability", "use"),
    [
        ("selector", lambda session: session.receive(QUEUE, 0, "a = 'b'")),
        ("browse", lambda session: session.browse(QUEUE)),
        ("durable_subscription", lambda session: session.receive(TOPIC, 0, subscription_name="d")),
        ("delayed_delivery", lambda session: session.send(QUEUE, JmsMessage.text(""), delay=1)),
        (
            "deduplicating_send",
            lambda session: session.send(QUEUE, JmsMessage.text(""), deduplication_id="d"),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_the_broker_lacks_is_refused_by_name(
    server: Broker, capability: str, use: Callable[[JmsSession], object]
) -> None:
    with (
        JmsConnection(LesserConnection(server, Capabilities())) as connection,
        connection.session() as session,
        pytest.raises(CapabilityError, match=capability),
    ):
        use(session)


def test_a_body_that_would_not_survive_is_refused(server: Broker) -> None:
    with (
        JmsConnection(LesserConnection(server, Capabilities())) as connection,
        connection.session() as session,
        pytest.raises(CapabilityError, match="map body"),
    ):
        session.send(QUEUE, JmsMessage.map({"n": 1}))


def test_a_selector_is_parsed_before_the_broker_sees_it(
    connection: JmsConnection, wire: LesserConnection
) -> None:
    with connection.session() as session, pytest.raises(ConfigurationError):
        session.receive(QUEUE, 0, "region = = 'eu'")
    assert wire.subscribed == []


def test_calls_that_make_no_sense_are_refused(connection: JmsConnection) -> None:
    plain, transacted = connection.session(), connection.session(transacted=True)
    for use, words in (
        (plain.commit, r"commit\(\) is for transacted"),
        (plain.rollback, r"rollback\(\) is for transacted"),
        (plain.acknowledge, "client mode"),
        (transacted.acknowledge, "client mode"),
        (transacted.recover, r"use rollback\(\)"),
        (lambda: connection.session(prefetch=0), "prefetch is 0"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            use()
    plain.close()
    for use in (lambda: plain.receive(QUEUE), lambda: plain.send(QUEUE, JmsMessage.text("x"))):
        with pytest.raises(ConfigurationError, match="session is closed"):
            use()
    connection.close()
    with pytest.raises(ConfigurationError, match="connection is closed"):
        connection.session()


def test_nothing_to_commit_is_fine(connection: JmsConnection) -> None:
    fill(connection, 1)
    with connection.session(transacted=True) as session:
        session.commit()
        session.rollback()
        assert drain(session, 1) == ["0"]


def refuse_the_first(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Let the messages "0" to `count` - 1 be none that can be decoded."""
    decode = Received.message.fget
    assert decode is not None

    def broken(received: Received) -> JmsMessage:
        message = decode(received)
        if int(str(message.body)) < count:
            raise PoisonMessageError("no Unicode")
        return message

    monkeypatch.setattr(Received, "message", property(broken))


def test_a_message_that_cannot_be_decoded_stays_and_does_not_block(
    server: Broker, connection: JmsConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(connection, 2)
    refuse_the_first(monkeypatch, 1)
    with connection.session(prefetch=2) as session:
        with pytest.raises(PoisonMessageError):
            session.receive(QUEUE, timeout=5)
        assert drain(session, 1) == ["1"]
    assert [message.body for message in server.messages("orders")] == ["0"]


@pytest.mark.parametrize("mode", [AcknowledgeMode.AUTO, AcknowledgeMode.DUPS_OK])
@pytest.mark.parametrize("poison", [1, 250])
def test_what_cannot_be_decoded_does_not_use_up_the_prefetch(
    server: Broker,
    connection: JmsConnection,
    monkeypatch: pytest.MonkeyPatch,
    mode: AcknowledgeMode,
    poison: int,
) -> None:
    """Nobody can settle it in these modes: the broker would hand out nothing more."""
    fill(connection, poison + 2)
    refuse_the_first(monkeypatch, poison)
    got, refused = [], 0
    with connection.session(acknowledge_mode=mode) as session:
        while len(got) < 2:
            try:
                message = session.receive(QUEUE, timeout=5)
            except PoisonMessageError:
                refused += 1
                continue
            assert message is not None
            got.append(message.body)
        assert session.receive(QUEUE, timeout=0) is None
    assert got == [str(poison), str(poison + 1)]
    assert poison <= refused <= 3 * poison
    assert server.depth("orders") == poison


def test_receive_waits_without_limit(connection: JmsConnection) -> None:
    with connection.session() as session:
        later = threading.Timer(0.1, fill, (connection, 1))
        later.start()
        message = session.receive(QUEUE, timeout=math.inf)
        later.join()
    assert message is not None


def test_a_refusal_at_the_close_leaves_no_subscription_open(wire: LesserConnection) -> None:
    """On a shared connection they would keep the messages that the broker has sent ahead."""
    usage = Usage()
    connection = JmsConnection(wire, lambda: None, usage=usage)
    fill(connection, 3)
    fill(connection, 3, Destination.queue("bills"))
    first, second = connection.session(), connection.session()
    for session in (first, second):
        session.receive(QUEUE, timeout=0)
        session.receive("queue://bills", timeout=0)
    refused: list[Consumer] = []

    for consumer in wire.consumers:

        def close(*, consumer: Consumer = consumer, close: Callable[[], None] = consumer.close) -> None:
            close()
            refused.append(consumer)
            raise PermanentBrokerError("no such subscription")

        consumer.close = close  # type: ignore[method-assign,assignment]
    with pytest.raises(PermanentBrokerError, match="no such subscription"):
        connection.close()
    assert len(refused) == 4
    assert usage.seconds_left(30) == 0, "the connection is not lent again"


def test_closing_the_connection_closes_sessions_and_calls_back_once(server: Broker) -> None:
    wire = LesserConnection(server)
    closed: list[int] = []
    connection = JmsConnection(wire, on_close=lambda: closed.append(1))
    fill(connection, 1)
    session = connection.session(transacted=True)
    drain(session, 1)
    connection.close()
    connection.close()
    assert closed == [1]
    assert server.connections == 1
    wire.close()
    with JmsConnection(LesserConnection(server)) as other, other.session() as reader:
        assert drain(reader, 1) == ["0"]


def test_a_destination_may_have_options_in_its_name(
    connection: JmsConnection, wire: LesserConnection
) -> None:
    """J91: no hook is needed for that."""
    named = "jmsjca://?name=queue://orders&prefetch=7"
    with connection.session() as session:
        session.send(named, JmsMessage.text("a"))
        message = session.receive(named, timeout=5)
        assert message is not None
        assert message.destination == QUEUE
    assert [each.prefetch for each in wire.subscribed] == [7]
    with (
        connection.session() as session,
        pytest.raises(ConfigurationError, match="no such administered object"),
    ):
        session.send("lookup://orders", JmsMessage.text("a"))


def test_many_messages_are_sent_at_once(connection: JmsConnection, server: Broker) -> None:
    def two() -> Iterator[Outgoing]:
        for body in "ab":
            yield Outgoing(destination=QUEUE, message=JmsMessage.text(body))

    with connection.session() as session:
        session.send_all(two())
        assert server.depth("orders") == 2
    with connection.session(transacted=True) as session:
        session.send_all(two())
        assert server.depth("orders") == 2
        session.commit()
    assert server.depth("orders") == 4


def test_of_many_messages_each_is_checked(server: Broker) -> None:
    late = Outgoing(destination=QUEUE, message=JmsMessage.text("a"), delay=timedelta(seconds=1))
    with (
        JmsConnection(LesserConnection(server, Capabilities())) as lesser,
        lesser.session() as session,
        pytest.raises(CapabilityError, match="delayed_delivery"),
    ):
        session.send_all([late])


def test_what_went_wrong_in_a_session_is_not_hidden_by_the_loss_that_its_end_meets(
    connection: JmsConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is lost while the session ends, before anybody was told of the loss."""
    fill(connection, 1)

    def lost(_: Inbox) -> None:
        raise ConnectionLostError("the broker closed the connection")

    monkeypatch.setattr(Inbox, "close", lost)
    with pytest.raises(PermanentBrokerError, match="no such message"):  # noqa: PT012, SIM117
        with connection.session(transacted=True) as session:
            drain(session, 1)
            raise PermanentBrokerError("no such message")
