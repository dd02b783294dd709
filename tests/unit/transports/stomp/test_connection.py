"""A connection against a peer that does as the test says, over a pair of sockets."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import queue
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.errors import (
    AuthenticationError,
    ClientIdInUseError,
    ConfigurationError,
    ConnectionLostError,
    InDoubtError,
    JmsError,
    PermanentBrokerError,
    PoisonMessageError,
    TransientBrokerError,
)
from airflow_provider_jmsjca.transports.base import (
    ConnectionSettings,
    ConnectionState,
    Outgoing,
    Received,
    Subscription,
)
from airflow_provider_jmsjca.transports.stomp import TRANSPORT, browsing
from airflow_provider_jmsjca.transports.stomp.connection import StompConnection
from airflow_provider_jmsjca.transports.stomp.link.link import Link
from airflow_provider_jmsjca.transports.stomp.link.replies import ReceiptGroup
from airflow_provider_jmsjca.transports.stomp.spill import FrameMemory, SpilledFrame
from airflow_provider_jmsjca.transports.stomp.wire.frames import Frame, FrameParser
from airflow_provider_jmsjca.transports.stomp.wire.wire import PlainChannel
from tests.pace import at_most
from tests.servers.stomp_peer import Peer

SECRET = "s3cret-word"
QUEUE = Destination.queue("orders")
CONNECTED = b"CONNECTED\nversion:1.2\nserver:%b\nsession:%b\nheart-beat:%d,%d\n\n\0\n"
SESSION = b"ID:broker-33001-1795296408012-6:515"


class Pair:
    """A connection and its peer."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._ours = ours
        self.peer = Peer(theirs)
        self.connection: StompConnection

    def make(self, another: Callable[[], Link] | None = None, **settings: Any) -> Link:
        arguments: dict[str, Any] = {
            "scheme": "stomp",
            "hosts": (("broker", 1),),
            "username": "me",
            "password": SECRET,
            "heart_beat": timedelta(0),
            "reply_timeout": timedelta(seconds=5),
        }
        link = Link(
            ConnectionSettings(**(arguments | settings)), ("broker", 1), PlainChannel(self._ours), another
        )
        self.connection = StompConnection(link)
        return link

    def up(
        self, server: bytes = b"Tested/1.0", beat: int = 0, session: bytes = SESSION, **settings: Any
    ) -> StompConnection:
        link = self.make(**settings)
        self.peer.say(CONNECTED % (server, session, beat, beat))
        link.open(time.monotonic() + 5)
        assert self.peer.hear()[0] == "CONNECT"
        self.connection = StompConnection(link)  # of an open link, as everywhere else
        return self.connection

    def in_background(self, function: Any, *arguments: Any) -> tuple[threading.Thread, list[BaseException]]:
        raised: list[BaseException] = []

        def run() -> None:
            try:
                function(*arguments)
            except JmsError as error:
                raised.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread, raised


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.peer.close()
    if hasattr(made, "connection"):
        made.connection.close()


def test_connect_frame(pair: Pair) -> None:
    link = pair.make(client_id="c:1", password="a:b\\c", options={"wanted": "x"})
    pair.peer.say(CONNECTED % (b"RabbitMQ/3.10.8", SESSION, 0, 0))
    link.open(time.monotonic() + 5)
    command, headers = pair.peer.hear()
    assert command == "CONNECT"
    assert headers == {
        "accept-version": "1.2",
        "host": "/",
        "login": "me",
        "passcode": "a:b\\c",
        "client-id": "c:1",
        "heart-beat": "20000,0",
        "wanted": "x",
    }
    assert str(link.broker) == "rabbitmq 3.10.8 at broker:1"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("User name [me] or password is invalid.", AuthenticationError),
        ("Security Error occurred: User name [me] or password is invalid", AuthenticationError),
        ("Bad CONNECT: Access refused for user 'me'", AuthenticationError),
        ("Broker: b - Client: c already connected from tcp://x", ClientIdInUseError),
        ("Broker: b - Client: password-reset already connected from tcp://x", ClientIdInUseError),
    ],
)
def test_refused_at_connect(pair: Pair, text: str, error: type[JmsError]) -> None:
    link = pair.make()
    pair.peer.say(f"ERROR\nmessage:{text}\n\n\0".encode())
    with pytest.raises(error) as refused:
        link.open(time.monotonic() + 5)
    assert SECRET not in str(refused.value)


def test_a_client_id_in_use_is_told_from_hosts_that_are_down() -> None:
    """J204: one of the hosts is the standby of a pair of brokers, and not there."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as unused:
        down = unused.getsockname()[1]
        unused.close()

        def refuse() -> None:
            client, _ = server.accept()
            with client:
                client.recv(65536)
                client.sendall(b"ERROR\nmessage:Broker: b - Client: c already connected from x\n\n\0")
                client.recv(65536)

        refusing = threading.Thread(target=refuse)
        refusing.start()
        settings = ConnectionSettings(
            scheme="stomp",
            hosts=(("127.0.0.1", down), ("127.0.0.1", server.getsockname()[1])),
            client_id="c",
            connect_timeout=timedelta(seconds=5),
        )
        with pytest.raises(ClientIdInUseError, match="already connected"):
            TRANSPORT.connect(settings)
        refusing.join(5)


def test_a_peer_that_says_nothing(pair: Pair) -> None:
    began = time.monotonic()
    with pytest.raises(TransientBrokerError, match="sent nothing in time"):
        pair.make().open(began + 0.2)
    assert time.monotonic() - began < 0.2 + at_most(0.8)


def test_a_peer_that_hangs_up(pair: Pair) -> None:
    link = pair.make()
    pair.peer.close()
    with pytest.raises(TransientBrokerError, match="before it sent CONNECTED"):
        link.open(time.monotonic() + 5)


def test_a_peer_that_speaks_something_else(pair: Pair) -> None:
    link = pair.make()
    pair.peer.say(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with pytest.raises(PermanentBrokerError, match="doesn't speak STOMP"):
        link.open(time.monotonic() + 5)


def test_an_older_protocol(pair: Pair) -> None:
    link = pair.make()
    pair.peer.say(b"CONNECTED\nversion:1.1\n\n\0")
    with pytest.raises(PermanentBrokerError, match=r"speaks STOMP 1\.1"):
        link.open(time.monotonic() + 5)


def test_silence_ends_the_connection_before_the_third_beat(pair: Pair) -> None:
    connection = pair.up(beat=400, heart_beat=timedelta(milliseconds=400))
    lost = threading.Event()
    connection.on_lost(lambda _: lost.set())
    began = time.monotonic()
    assert lost.wait(5)
    assert 0.6 < time.monotonic() - began < 0.8 + at_most(1)
    with pytest.raises(ConnectionLostError, match="no sign of life"):
        connection.synchronize()


def test_any_byte_is_a_sign_of_life(pair: Pair) -> None:
    connection = pair.up(beat=400, heart_beat=timedelta(milliseconds=400))
    for _ in range(10):
        pair.peer.say(b"\n")
        time.sleep(0.15)  # longer than silence may last, altogether
    assert connection.state is ConnectionState.UP


def test_we_beat_in_time(pair: Pair) -> None:
    pair.up(beat=200, heart_beat=timedelta(milliseconds=200))
    began, beats = time.monotonic(), b""
    while time.monotonic() - began < 0.9:
        pair.peer.say(b"\n")
        beats += pair.peer.hear_bytes()
    assert beats.strip(b"\n") == b""
    assert len(beats) >= 5  # more often than promised: late by a millisecond counts as dead


def test_a_process_that_holds_the_interpreter_lock_is_blamed_and_not_the_broker(pair: Pair) -> None:
    connection = pair.up(beat=400, heart_beat=timedelta(milliseconds=400))
    lost: queue.SimpleQueue[JmsError] = queue.SimpleQueue()
    connection.on_lost(lost.put)
    pair.peer.say(b"\n")
    ctypes.PyDLL(None).usleep(1_500_000)  # a function of C that keeps the lock
    pair.peer.close()
    reason = str(lost.get(timeout=5))
    assert re.match(r"this process was busy for 1\.\d s since \d\d:\d\d:\d\d \(interpreter lock held", reason)
    assert "A heart_beat above 0.4 s helps." in reason


def test_a_broker_that_only_beats_blocks_the_connection(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    """RabbitMQ does so while memory is short."""
    beat = timedelta(milliseconds=400)
    connection = pair.up(beat=400, heart_beat=beat, reply_timeout=timedelta(seconds=1))
    closing, raised = pair.in_background(connection.close)
    while closing.is_alive():
        with contextlib.suppress(OSError):
            pair.peer.say(b"\n")
        closing.join(0.1)
    assert not raised
    (warning,) = (each for each in caplog.records if each.levelno == logging.WARNING)
    assert (
        "blocked by the broker, which still sends messages but answers no request: " in warning.getMessage()
    )


def test_an_error_before_the_end_is_the_reason(pair: Pair) -> None:
    connection = pair.up()
    reasons: list[JmsError] = []
    lost = threading.Event()

    def note(reason: JmsError) -> None:
        reasons.append(reason)
        lost.set()

    connection.on_lost(note)
    pair.peer.say(b"ERROR\nmessage:shutting down\n\n\0")
    pair.peer.close()
    assert lost.wait(5)
    assert "shutting down" in str(reasons[0])
    late = threading.Event()
    connection.on_lost(lambda _: late.set())
    assert late.wait(5)


def test_a_send_without_a_receipt_before_the_end_is_in_doubt(pair: Pair) -> None:
    connection = pair.up()
    thread, raised = pair.in_background(
        connection.send, [Outgoing(destination=QUEUE, message=JmsMessage.text("x"))]
    )
    assert pair.peer.hear()[0] == "SEND"
    pair.peer.close()
    thread.join(5)
    assert [type(error) for error in raised] == [InDoubtError]


def test_a_refused_send_is_named(pair: Pair) -> None:
    connection = pair.up()
    outgoing = [Outgoing(destination=QUEUE, message=JmsMessage.text(body)) for body in "abc"]
    thread, raised = pair.in_background(connection.send, outgoing)
    frames = [pair.peer.hear()[1] for _ in range(3)]
    pair.peer.receipt(frames[0])
    pair.peer.say(f"ERROR\nreceipt-id:{frames[1]['receipt']}\nmessage:no room\n\n\0".encode())
    thread.join(5)
    assert isinstance(raised[0], PermanentBrokerError)
    assert "message 2 to queue://orders was refused" in str(raised[0])
    assert "no room" in str(raised[0])


def consume(pair: Pair, connection: StompConnection, inbox: list[Received]) -> tuple[Any, str]:
    consumers: list[Any] = []
    thread, raised = pair.in_background(
        lambda: consumers.append(connection.consume(Subscription(destination=QUEUE), inbox.append))
    )
    command, headers = pair.peer.hear()
    assert (command, headers["ack"]) == ("SUBSCRIBE", "client-individual")
    pair.peer.receipt(headers)
    thread.join(5)
    assert not raised
    return consumers[0], headers["id"]


def until(condition: Any) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_acknowledgements_are_sent_once_and_as_the_broker_named_them(pair: Pair) -> None:
    connection, inbox = pair.up(), list[Received]()
    consumer, identifier = consume(pair, connection, inbox)
    for number in range(2):
        pair.peer.say(f"MESSAGE\nsubscription:{identifier}\nack:a\\c{number}\n\nx\0".encode())
    until(lambda: len(inbox) == 2)
    consumer.acknowledge(inbox)
    consumer.acknowledge(inbox)
    assert pair.peer.hear() == ("ACK", {"id": "a\\c0"})
    assert pair.peer.hear() == ("ACK", {"id": "a\\c1"})
    thread, _ = pair.in_background(connection.synchronize)
    assert pair.peer.hear()[0] == "BEGIN"
    command, headers = pair.peer.hear()
    assert command == "ABORT"
    pair.peer.receipt(headers)
    thread.join(5)


def test_messages_of_an_ended_subscription_are_dropped(pair: Pair) -> None:
    connection, inbox = pair.up(b"ActiveMQ/6.3.1"), list[Received]()
    consumer, old = consume(pair, connection, inbox)
    pair.peer.say(f"MESSAGE\nsubscription:{old}\nack:1\n\nx\0\n".encode())
    until(lambda: inbox)
    thread, _ = pair.in_background(consumer.recover)
    assert pair.peer.hear() == ("UNSUBSCRIBE", {"id": old})
    command, headers = pair.peer.hear()
    assert command == "SUBSCRIBE"
    assert headers["id"] != old
    pair.peer.say(f"MESSAGE\nsubscription:{old}\nack:2\n\nx\0\n".encode())
    pair.peer.say(f"MESSAGE\nsubscription:{headers['id']}\nack:3\n\nx\0\n".encode())
    pair.peer.receipt(headers)
    thread.join(5)
    until(lambda: len(inbox) == 2)
    assert [item.token for item in inbox] == [b"1", b"3"]
    consumer.acknowledge(inbox)
    assert pair.peer.hear() == ("ACK", {"id": "3"})


def test_an_unknown_server_gets_messages_back_by_the_end_of_the_connection(pair: Pair) -> None:
    connection, inbox = pair.up(), list[Received]()
    consumer, identifier = consume(pair, connection, inbox)
    pair.peer.say(f"MESSAGE\nsubscription:{identifier}\nack:1\n\nx\0".encode())
    until(lambda: inbox)
    consumer.recover()
    assert connection.state is ConnectionState.LOST


def test_waiting_in_a_callback_is_refused(pair: Pair) -> None:
    connection = pair.up()
    raised: list[Exception] = []

    def wait(_: Received) -> None:
        try:
            connection.synchronize()
        except ConfigurationError as error:
            raised.append(error)

    thread, _ = pair.in_background(connection.consume, Subscription(destination=QUEUE), wait)
    _, headers = pair.peer.hear()
    pair.peer.receipt(headers)
    thread.join(5)
    pair.peer.say(f"MESSAGE\nsubscription:{headers['id']}\nack:1\n\nx\0".encode())
    until(lambda: raised)
    assert "must not wait" in str(raised[0])


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"hosts": ()}, "no host"),
        ({"scheme": "http"}, "'http'"),
        ({"options": {"passcode": "x"}}, "'passcode'"),
        ({"password": f"{SECRET}\n"}, "the password holds a line break"),
        ({"client_id": "a\0b"}, "the client id holds"),
    ],
)
def test_settings_that_cannot_work(settings: dict[str, Any], match: str) -> None:
    base: dict[str, Any] = {"scheme": "stomp", "hosts": (("localhost", 1),)}
    with pytest.raises(ConfigurationError, match=match) as refused:
        TRANSPORT.connect(ConnectionSettings(**(base | settings)))
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("attempt", range(10))
def test_the_last_words_of_a_broker_that_hangs_up_on_a_large_message_are_heard(
    pair: Pair, attempt: int
) -> None:
    """Whichever thread notices first that the connection is gone."""
    connection = pair.up(b"ActiveMQ/6.3.1")
    large = Outgoing(destination=QUEUE, message=JmsMessage.bytes(b"x" * 4_000_000))
    thread, raised = pair.in_background(connection.send, [large])
    for _ in range(attempt + 1):
        pair.peer.hear_bytes()
    pair.peer.say(b"ERROR\nmessage:The maximum data length was exceeded\n\n\0\n")
    pair.peer.close()
    thread.join(10)
    (error,) = raised
    assert isinstance(error, PermanentBrokerError), error
    assert "maxDataLength" in str(error)


def test_a_broker_that_takes_a_large_message_slowly_is_waited_for(pair: Pair) -> None:
    """The reply timeout is for a broker that takes nothing."""
    connection = pair.up(reply_timeout=timedelta(seconds=2))
    size = 4_000_000
    large = Outgoing(destination=QUEUE, message=JmsMessage.bytes(b"x" * size))
    thread, raised = pair.in_background(connection.send, [large])
    taken, began = b"", time.monotonic()
    while len(taken) < size:
        data = pair.peer.hear_bytes()
        assert data, f"the client hung up: {raised}"
        taken += data
        time.sleep(0.05)  # the slowness is what is tested: 3 s and more altogether
    assert time.monotonic() - began > 2.5
    receipt = taken.partition(b"receipt:")[2].partition(b"\n")[0].decode()
    pair.peer.receipt({"receipt": receipt})
    thread.join(10)
    assert raised == []


def test_an_interrupted_close_ends_the_connection(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C, or the time limit of a task, while the broker owes its good-bye."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    connection = pair.up()
    monkeypatch.setattr(ReceiptGroup, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        connection.close()
    assert pair.peer.hear()[0] == "DISCONNECT"
    with pytest.raises(ConnectionResetError, match="hung up"):
        pair.peer.hear()


def test_a_close_that_is_not_answered_is_said(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody may have heard the last acknowledgements."""
    connection = pair.up(reply_timeout=timedelta(seconds=1))
    inbox: list[Received] = []
    consumer, identifier = consume(pair, connection, inbox)
    pair.peer.say(f"MESSAGE\nsubscription:{identifier}\nack:a1\n\nx\0".encode())
    until(lambda: inbox)
    consumer.acknowledge(inbox)
    connection.close()
    assert "the last acknowledged messages may be redelivered" in caplog.text
    assert caplog.records[-1].levelname == "WARNING"


def test_a_close_that_is_not_answered_matters_to_nobody_who_acknowledged_nothing(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    connection = pair.up(reply_timeout=timedelta(seconds=1))
    inbox: list[Received] = []
    _, identifier = consume(pair, connection, inbox)
    pair.peer.say(f"MESSAGE\nsubscription:{identifier}\nack:a1\n\nx\0".encode())
    until(lambda: inbox)
    connection.close()
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_good_bye_is_heard_though_the_broker_closes_at_once(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Before `close` looks for the receipt, the reader has met the end of the stream."""
    connection = pair.up()
    inbox: list[Received] = []
    consumer, identifier = consume(pair, connection, inbox)
    pair.peer.say(f"MESSAGE\nsubscription:{identifier}\nack:a1\n\nx\0".encode())
    until(lambda: inbox)
    consumer.acknowledge(inbox)
    wire = connection.link.wire
    flush = wire.flush

    def answered_meanwhile() -> None:
        flush()
        assert pair.peer.hear()[0] == "ACK"
        pair.peer.receipt(pair.peer.hear()[1])
        pair.peer.close()
        wire.join(5)
        flush()

    monkeypatch.setattr(wire, "flush", answered_meanwhile)
    connection.close()
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_an_interrupted_open_ends_the_connection(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    link = pair.make()
    monkeypatch.setattr(link, "_greet", interrupted)
    pair.peer.say(CONNECTED % (b"Tested/1.0", SESSION, 0, 0))
    with pytest.raises(KeyboardInterrupt):
        link.open(time.monotonic() + 5)
    assert pair.peer.hear()[0] == "CONNECT"
    with pytest.raises(ConnectionResetError, match="hung up"):
        pair.peer.hear()


def test_a_reader_that_dies_of_the_unforeseen_is_a_loss(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as a message there is no memory for: a connection that nobody reads must not look alive."""

    def no_memory(*_: object) -> list[Frame]:
        raise MemoryError

    connection, reasons = pair.up(), list[JmsError]()
    connection.on_lost(reasons.append)
    thread, raised = pair.in_background(connection.synchronize)
    assert [pair.peer.hear()[0] for _ in range(2)] == ["BEGIN", "ABORT"]
    monkeypatch.setattr(FrameParser, "feed", no_memory)
    pair.peer.say(b"\n")
    thread.join(5)
    until(lambda: reasons)
    assert connection.state is ConnectionState.LOST
    assert [str(error) for error in reasons] == ["the connection broke: MemoryError"]
    assert [type(error) for error in raised] == [ConnectionLostError]
    assert "Reading from the broker failed" in caplog.text


@pytest.mark.parametrize("server", [b"RabbitMQ/3.10.8", b"ActiveMQ/6.3.1"])
def test_a_recover_that_fails_ends_the_connection(pair: Pair, server: bytes) -> None:
    """Up, it would bring nothing any more, and nobody would know."""
    connection, inbox, lost = pair.up(server), list[Received](), threading.Event()
    connection.on_lost(lambda _: lost.set())
    consumer, identifier = consume(pair, connection, inbox)
    pair.peer.say(f"MESSAGE\nsubscription:{identifier}\nack:1\n\nx\0\n".encode())
    until(lambda: inbox)
    thread, raised = pair.in_background(consumer.recover)
    while "receipt" not in (heard := pair.peer.hear()[1]):
        pass
    pair.peer.say(f"ERROR\nreceipt-id:{heard['receipt']}\nmessage:no room\n\n\0\n".encode())
    thread.join(5)
    assert "no room" in str(raised[0])
    assert lost.wait(5)
    assert connection.state is ConnectionState.LOST


UNREADABLE = [b"\xff\xfe@@s@@1", b"T_s@@s\\t@@1"]
"""Values of `ack` that are no text, or none that STOMP knows: they go back as they came."""


def hold_one(pair: Pair, server: bytes, token: bytes) -> tuple[Any, str]:
    """Return a consumer that has one message unsettled, and the id of its subscription."""
    connection, inbox = pair.up(server), list[Received]()
    consumer, identifier = consume(pair, connection, inbox)
    pair.peer.say(b"MESSAGE\nsubscription:%b\nack:%b\n\nx\0\n" % (identifier.encode(), token))
    until(lambda: inbox)
    assert inbox[0].token == token
    return consumer, identifier


@pytest.mark.parametrize("token", UNREADABLE)
@pytest.mark.parametrize("recovers", [True, False])
def test_rabbitmq_is_given_back_a_message_whose_token_is_no_text(
    pair: Pair, token: bytes, *, recovers: bool
) -> None:
    consumer, old = hold_one(pair, b"RabbitMQ/3.10.8", token)
    thread, raised = pair.in_background(consumer.recover if recovers else consumer.close)
    command, unsubscribed = pair.peer.hear()
    assert (command, unsubscribed["id"]) == ("UNSUBSCRIBE", old)
    pair.peer.receipt(unsubscribed)
    command, keeper = pair.peer.hear()
    assert (command, keeper["destination"]) == ("SUBSCRIBE", f"/topic/keeper-{keeper['id']}")
    command, handed_back = pair.peer.hear()
    assert command == "NACK"
    after = token.partition(b"@@")[2].decode()
    assert handed_back["id"] == f"T_{keeper['id']}@@{after}"
    pair.peer.receipt(handed_back)
    if recovers:
        command, anew = pair.peer.hear()
        assert command == "SUBSCRIBE"
        pair.peer.receipt(anew)
    thread.join(5)
    assert not thread.is_alive()
    assert raised == []
    assert pair.connection.link.is_up


def test_messages_that_rabbitmq_does_not_take_back_come_again_over_another_connection(pair: Pair) -> None:
    """It keeps them until the connection ends, and the consumer that held them is gone."""
    consumer, _ = hold_one(pair, b"RabbitMQ/3.10.8", b"T_s@@x@@1")
    thread, raised = pair.in_background(consumer.close)
    pair.peer.receipt(pair.peer.hear()[1])
    assert pair.peer.hear()[0] == "SUBSCRIBE"
    _, nack = pair.peer.hear()
    pair.peer.say(f"ERROR\nreceipt-id:{nack['receipt']}\nmessage:not found\n\n\0\n".encode())
    thread.join(5)
    assert [type(error) for error in raised] == [PermanentBrokerError]
    until(lambda: pair.connection.state is ConnectionState.LOST)


def test_a_subscription_that_the_broker_cancels_ends_the_connection_by_name(pair: Pair) -> None:
    cancelled = "ERROR\nsubscription:{}\nmessage:Server cancelled subscription\n\n\0\n"
    connection, inbox = pair.up(b"RabbitMQ/3.10.8"), list[Received]()
    consumer, identifier = consume(pair, connection, inbox)
    lost: list[JmsError] = []
    connection.on_lost(lost.append)
    thread, _ = pair.in_background(connection.synchronize)
    pair.peer.say(cancelled.format("another").encode())  # one that was ended before
    receipts = [headers for _, headers in (pair.peer.hear(), pair.peer.hear()) if "receipt" in headers]
    pair.peer.receipt(receipts[0])
    thread.join(5)
    assert not lost
    pair.peer.say(cancelled.format(identifier).encode())
    until(lambda: lost)
    assert f"cancelled the subscription to {consumer.subscription.destination}" in str(lost[0])


@pytest.mark.parametrize("before", [b"\xff\xfe", b"T_s@@x@@many", b"T_s@@x@@" + b"9" * 5000])
def test_a_delivery_into_the_void_whose_number_is_unknown_ends_the_connection(
    pair: Pair, before: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    lost: list[JmsError] = []
    consumer, _ = hold_one(pair, b"RabbitMQ/3.10.8", before)
    pair.connection.on_lost(lost.append)
    pair.peer.say(b"ERROR\nmessage:There is no current subscription with tag\n\n\0\n")
    until(lambda: lost)
    assert isinstance(lost[0], ConnectionLostError)
    assert "can't be returned" in str(lost[0])
    with pytest.raises(ConnectionLostError):
        consumer.recover()
    assert "failed" not in caplog.text


@pytest.mark.parametrize("line", [b"", b"ack:\n", b"ack:a\0b\n"])
def test_a_message_that_cannot_be_settled_ends_the_connection(pair: Pair, line: bytes) -> None:
    identifier, came = consuming(pair)
    lost: list[JmsError] = []
    pair.connection.on_lost(lost.append)
    pair.peer.say(b"MESSAGE\nsubscription:%b\n%b\nx\0\n" % (identifier.encode(), line))
    until(lambda: lost)
    assert isinstance(lost[0], ConnectionLostError)
    assert "it has no valid ack header" in str(lost[0])
    assert came == []


def test_what_is_acknowledged_while_rabbitmq_is_given_messages_back_comes_again(pair: Pair) -> None:
    """An acknowledgement behind UNSUBSCRIBE settles nothing; the message would be kept until the end."""
    connection, inbox = pair.up(b"RabbitMQ/3.10.8"), list[Received]()
    consumer, old = consume(pair, connection, inbox)
    message = "MESSAGE\nsubscription:{}\nack:T_s@@x@@{}\n\nx\0\n"
    pair.peer.say("".join(message.format(old, number) for number in (1, 2)).encode())
    until(lambda: len(inbox) == 2)
    thread, raised = pair.in_background(consumer.recover)
    command, unsubscribed = pair.peer.hear()
    assert command == "UNSUBSCRIBE"
    consumer.acknowledge(inbox[:1])
    pair.peer.say(message.format(old, 3).encode())  # it was on its way
    pair.peer.receipt(unsubscribed)
    heard = [pair.peer.hear() for _ in range(4)]
    assert [command for command, _ in heard] == ["SUBSCRIBE", "NACK", "NACK", "NACK"]
    assert [headers["id"].rpartition("@@")[2] for _, headers in heard[1:]] == ["1", "2", "3"]
    for _, headers in heard[1:]:
        pair.peer.receipt(headers)
    command, headers = pair.peer.hear()
    assert command == "SUBSCRIBE"
    pair.peer.receipt(headers)
    thread.join(5)
    assert raised == []
    assert len(inbox) == 2
    pair.peer.say(message.format(headers["id"], 4).encode())
    until(lambda: len(inbox) == 3)
    consumer.acknowledge(inbox)
    assert pair.peer.hear() == ("ACK", {"id": "T_s@@x@@4"})


def consuming(pair: Pair, server: bytes = b"ActiveMQ/6.3.1", **settings: Any) -> tuple[str, list[Received]]:
    """Return the id of a subscription the pair has, and what comes for it."""
    connection = pair.up(server, **settings)
    came: list[Received] = []
    thread, raised = pair.in_background(connection.consume, Subscription(destination=QUEUE), came.append)
    _, headers = pair.peer.hear()
    pair.peer.receipt(headers)
    thread.join(5)
    assert raised == []
    return headers["id"], came


@pytest.mark.parametrize(
    "forged",
    [
        b"MESSAGE\nsubscription:s1\nmessage-id:evil\nack:evil\n\npay me\0\n",
        b"RECEIPT\nreceipt-id:1\n\n\0\n",
        b"ERROR\nreceipt-id:1\nmessage:no\n\n\0\n",
        CONNECTED % (b"ActiveMQ/6.3.1", SESSION, 0, 0),
    ],
)
def test_a_frame_for_an_id_that_is_not_ours_ends_the_connection(pair: Pair, forged: bytes) -> None:
    _, came = consuming(pair)
    lost: list[JmsError] = []
    pair.connection.on_lost(lost.append)
    pair.peer.say(forged)
    until(lambda: lost)
    assert isinstance(lost[0], ConnectionLostError)
    assert "can't have sent" in str(lost[0])
    assert came == []


def test_ids_are_not_to_be_guessed(pair: Pair) -> None:
    identifier, _ = consuming(pair)
    other = Pair()
    another, _ = consuming(other)
    other.peer.close()
    other.connection.close()
    assert len(identifier) > 10
    assert identifier[:8] != another[:8]
    unit = pair.connection.unit()
    unit.send(Outgoing(destination=QUEUE, message=JmsMessage.text("x")))
    pair.connection.link.wire.flush()
    assert pair.peer.hear()[1]["transaction"].startswith(identifier[:8])


def test_receipts_of_rabbitmq_are_short_because_each_character_costs_time(pair: Pair) -> None:
    link = pair.up(b"RabbitMQ/3.10.8").link
    receipts = link.replies.receipts().ask_for(5000)
    assert len(set(receipts)) == 5000
    assert {len(each) for each in receipts} == {4}


def test_what_crosses_an_unsubscribe_is_no_forgery(pair: Pair) -> None:
    identifier, came = consuming(pair)
    message = f"MESSAGE\nsubscription:{identifier}\nmessage-id:1\nack:1\n\nx\0\n".encode()
    pair.peer.say(message)
    until(lambda: came)
    thread, raised = pair.in_background(came[0].consumer.close)
    _, headers = pair.peer.hear()
    pair.peer.say(message)
    pair.peer.receipt(headers)
    thread.join(5)
    assert raised == []
    pair.peer.say(message)
    thread, raised = pair.in_background(pair.connection.synchronize)
    pair.peer.receipt(pair.peer.hear()[1])
    thread.join(5)
    assert raised == []
    assert pair.connection.link.is_up


def test_a_durable_name_of_rabbitmq_is_proven_by_the_session(pair: Pair) -> None:
    connection = pair.up(b"RabbitMQ/3.10.8", session=b"session-vhBSrCf0uJJnPxl6zbD", client_id="app")
    came: list[Received] = []
    topic = Subscription(destination=Destination.topic("news"), durable_name="daily")
    thread, raised = pair.in_background(connection.consume, topic, came.append)
    _, headers = pair.peer.hear()
    pair.peer.receipt(headers)
    thread.join(5)
    assert raised == []
    head = f"MESSAGE\nsubscription:{headers['id']}\nmessage-id:m\n".encode()
    pair.peer.say(head + b"ack:T_x@@session-vhBSrCf0uJJnPxl6zbD@@1\n\nreal\0\n")
    until(lambda: came)
    assert came[0].message.body == b"real"
    pair.peer.say(head + b"ack:T_x@@session-guess@@2\n\nforged\0\n")
    until(lambda: not connection.link.is_up)
    assert len(came) == 1


def test_a_message_whose_length_is_too_great_is_found_out(pair: Pair) -> None:
    """Nothing more comes while it is unsettled: the answer to a question shows where it ends."""
    identifier, came = consuming(pair)
    pair.peer.say(
        f"MESSAGE\nsubscription:{identifier}\nmessage-id:1\nack:1\ncontent-length:99999\n\nshort\0\n".encode()
    )
    pair.peer.receipt(pair.peer.hear()[1])
    until(lambda: came)
    with pytest.raises(PoisonMessageError, match="given as 99999, and the body has 5 bytes"):
        came[0].message  # noqa: B018
    salvaged = came[0].salvaged
    assert salvaged is not None
    assert salvaged.body == b"short"


def test_a_frame_that_is_broken_off_ends_the_connection(pair: Pair) -> None:
    identifier, came = consuming(pair, reply_timeout=timedelta(seconds=1.5))
    lost: list[JmsError] = []
    pair.connection.on_lost(lost.append)
    pair.peer.say(f"MESSAGE\nsubscription:{identifier}\nack:1\n\nhal".encode())
    until(lambda: lost)
    assert "stopped in the middle of a frame" in str(lost[0])
    assert came == []


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        (b"CONNECTED\nversion:1.2\nheart-beat:soon,0\n\n\0", "soon"),
        (b"CONNECTED\nversion:1.2\nheart-beat:1\n\n\0", "isn't two numbers"),
        (b"CONNECTED\nversion:1.2\nheart-beat:0,-5\n\n\0", "isn't two numbers"),
        (b"CONNECTED\nversion:1.2\nheart-beat:0," + b"9" * 5000 + b"\n\n\0", "isn't two numbers"),
        (b"CONNECTED\nversion:1.2\nserver:a\\tb\n\n\0", "CONNECTED, but a header is escaped"),
        (b"CONNECTED\nversion:1.2\nserver:\xff\n\n\0", "CONNECTED, but the headers are not UTF-8"),
        (b"ERROR\nmessage\n\n\0", "ERROR, but the header line"),
        (b"CONNECTED\ncontent-length:1000000000000\n\n", "more than 65536 bytes"),
        (b"CONNECTED\na:" + b"x" * 70_000, "more than 65536 bytes"),
    ],
)
def test_a_bad_greeting_is_an_error_of_ours(pair: Pair, answer: bytes, match: str) -> None:
    link = pair.make()
    pair.peer.say(answer)
    with pytest.raises(PermanentBrokerError, match=match):
        link.open(time.monotonic() + 5)


def test_a_heart_beat_of_months_is_waited_for_as_long(pair: Pair) -> None:
    """A wait of so many milliseconds would be too long for the system call."""
    pair.up(b"ActiveMQ/6.3.1", beat=9_999_999_999, heart_beat=timedelta(seconds=1))
    thread, raised = pair.in_background(pair.connection.synchronize)
    pair.peer.receipt(pair.peer.hear()[1])
    thread.join(5)
    assert raised == []


@pytest.mark.parametrize(
    "answer", ["many", "{}", '["many"]', "[null]", "[[]]", "[" * 100_000, '["' + "9" * 5000 + '"]', "[1e999]"]
)
def test_a_count_that_cannot_be_read_is_an_error_of_ours(pair: Pair, answer: str) -> None:
    """Whoever watches a queue goes on after errors of ours, and would end with any other."""
    connection = pair.up(b"ActiveMQ-Artemis/2.56.0")
    thread, raised = pair.in_background(lambda: connection.backlog(QUEUE))
    _, subscribed = pair.peer.hear()
    pair.peer.receipt(subscribed)
    assert pair.peer.hear()[0] == "SEND"
    head = f"MESSAGE\nsubscription:{subscribed['id']}\nmessage-id:1\nack:1\n_AMQ_OperationSucceeded:true\n\n"
    pair.peer.say(f"{head}{answer}\0\n".encode())
    command, headers = pair.peer.hear()
    while command != "UNSUBSCRIBE":
        command, headers = pair.peer.hear()
    pair.peer.receipt(headers)
    thread.join(5)
    (error,) = raised
    assert type(error) is PermanentBrokerError
    assert "is invalid" in str(error)


def looked_at(peer: Peer, count: int) -> list[dict[str, str]]:
    """Take the subscriptions of one look at so many queues."""
    asked = [peer.hear() for _ in range(count)]
    assert [command for command, _ in asked] == ["SUBSCRIBE"] * count
    assert {(headers["browser"], headers["ack"]) for _, headers in asked} == {("true", "client")}
    return [headers for _, headers in asked]


def answer(peer: Peer, headers: dict[str, str], *, receipt_last: bool = False) -> None:
    if not receipt_last:
        peer.receipt(headers)
    peer.say(f"MESSAGE\nsubscription:{headers['id']}\nmessage-id:0\nbrowser:end\n\n\0\n".encode())
    if receipt_last:
        peer.receipt(headers)


def test_a_producer_does_not_end_a_look(pair: Pair) -> None:
    """ActiveMQ passes a header `browser` on, and the id is its own: nobody may hide a queue."""
    connection = pair.up(b"ActiveMQ/6.3.1")
    found: list[Any] = []

    def look() -> None:
        found.extend(connection.first_messages([(QUEUE, None)]))
        found.extend(connection.browse(QUEUE))

    thread, raised = pair.in_background(look)
    forged = "MESSAGE\nbrowser:end\nsubscription:{}\nmessage-id:ID\\cx\nack:1\n\nforged\0\n"
    command, headers = pair.peer.hear()
    assert command == "SUBSCRIBE"
    pair.peer.receipt(headers)
    pair.peer.say(forged.format(headers["id"]).encode())
    assert pair.peer.hear()[0] == "UNSUBSCRIBE"
    command, headers = pair.peer.hear()
    assert command == "SUBSCRIBE"
    pair.peer.say(forged.format(headers["id"]).encode())
    answer(pair.peer, headers)
    thread.join(5)
    assert raised == []
    assert [message.body for message in found] == ["forged", "forged"]


def test_what_a_browser_has_not_looked_at_yet_is_kept_on_disk(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker sends a page of messages at once, however large they are."""
    on_disk: list[bool] = []

    class NotingMemory(FrameMemory):
        def hold(self, frame: Frame) -> Frame:
            kept = super().hold(frame)
            on_disk.append(isinstance(kept, SpilledFrame))
            return kept

    monkeypatch.setattr(browsing, "MEMORY", NotingMemory(limit=350_000))
    connection = pair.up(b"ActiveMQ/6.3.1")
    found: list[Any] = []

    def look() -> None:
        found.extend(message.body for message in connection.browse(QUEUE))

    thread, raised = pair.in_background(look)
    _, headers = pair.peer.hear()
    bodies = [str(number) * 100_000 for number in range(8)]
    for number, body in enumerate(bodies):
        head = f"MESSAGE\nsubscription:{headers['id']}\nmessage-id:{number + 1}\n\n"
        pair.peer.say(f"{head}{body}\0\n".encode())
    answer(pair.peer, headers, receipt_last=True)
    thread.join(5)
    assert raised == []
    assert found == bodies
    assert on_disk == [False] * 3 + [True] * 5


def test_an_error_that_does_not_say_which_look_it_means_is_found_out(pair: Pair) -> None:
    """The broker refuses the second of two queues, and doesn't say so; each is asked about alone."""
    connection = pair.up(b"ActiveMQ/6.3.1")
    found: list[Any] = []
    thread, _ = pair.in_background(
        lambda: found.extend(connection.first_messages([(QUEUE, None), (Destination.queue("secret"), None)]))
    )
    looked_at(pair.peer, 2)
    refusal = b"ERROR\nmessage:not allowed\n\n\0\n"
    pair.peer.say(refusal)
    assert [pair.peer.hear()[0] for _ in range(2)] == ["UNSUBSCRIBE"] * 2
    (alone,) = looked_at(pair.peer, 1)
    answer(pair.peer, alone)
    assert pair.peer.hear()[0] == "UNSUBSCRIBE"
    (alone,) = looked_at(pair.peer, 1)
    assert alone["destination"].endswith("secret")
    pair.peer.say(refusal)
    thread.join(5)
    nothing, refused = found
    assert nothing is None
    assert isinstance(refused, PermanentBrokerError)
    assert "not allowed" in str(refused)


def test_a_look_that_loses_the_connection_fails_for_all(pair: Pair) -> None:
    connection = pair.up(b"ActiveMQ/6.3.1")
    found: list[Any] = []
    queues = [(QUEUE, None)] * 3
    thread, _ = pair.in_background(lambda: found.extend(connection.first_messages(queues)))
    first, *_ = looked_at(pair.peer, 3)
    answer(pair.peer, first)
    pair.peer.close()
    thread.join(5)
    assert found[0] is None
    assert [type(each) for each in found[1:]] == [ConnectionLostError] * 2
    assert [type(each) for each in connection.first_messages(queues)] == [ConnectionLostError] * 3


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"name": "orders"}, "at broker:1 (connection 'orders') is lost: "), ({}, "at broker:1 is lost: ")],
)
def test_the_log_names_the_connection_that_is_lost(
    pair: Pair, caplog: pytest.LogCaptureFixture, settings: dict[str, str], said: str
) -> None:
    connection = pair.up(**settings)
    lost = threading.Event()
    connection.on_lost(lambda _: lost.set())
    pair.peer.close()
    assert lost.wait(5)
    assert said in next(line for line in caplog.messages if "is lost" in line)


PRODUCTS = (b"ActiveMQ/5.19.0", b"RabbitMQ/4.0.0", b"ActiveMQ-Artemis/2.40.0 ActiveMQ Artemis", b"Tested/1.0")


@pytest.mark.parametrize("server", PRODUCTS[:3])
@pytest.mark.parametrize("repeated", [False, True])
def test_a_broker_that_sends_far_more_than_was_asked_for_is_given_up(
    pair: Pair, server: bytes, *, repeated: bool
) -> None:
    came: list[Received] = []
    connection = pair.up(server=server)
    thread, _ = pair.in_background(
        lambda: connection.consume(Subscription(destination=QUEUE, prefetch=10), came.append)
    )
    _, headers = pair.peer.hear()
    pair.peer.receipt(headers)
    thread.join(5)
    lost: list[JmsError] = []
    connection.on_lost(lost.append)
    head = f"MESSAGE\nsubscription:{headers['id']}\ndestination:/queue/q\ncontent-length:15000\n"
    sent = 0
    with contextlib.suppress(OSError):
        while not lost and sent < 20_000:
            sent += 1
            ack = 1 if repeated else sent
            pair.peer.say(f"{head}message-id:T_{ack}\nack:T_{ack}\n\n".encode() + b"x" * 15_000 + b"\0\n")
    until(lambda: lost)
    assert "far more than the prefetch allows" in str(lost[0])
    assert len(came) <= 1100
    assert sent < 5000


@pytest.mark.parametrize("server", PRODUCTS)
def test_a_broker_that_sends_errors_without_end_is_given_up(
    pair: Pair, caplog: pytest.LogCaptureFixture, server: bytes
) -> None:
    connection = pair.up(server=server)
    lost: list[JmsError] = []
    connection.on_lost(lost.append)
    with contextlib.suppress(OSError):
        for _ in range(1000):
            if lost:
                break
            pair.peer.say(b"ERROR\nmessage:no\n\nbecause\0\n")
    until(lambda: lost)
    assert "errors that match no request" in str(lost[0])
    assert len(caplog.messages) <= 102
