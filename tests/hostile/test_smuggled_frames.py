"""Frames that a producer hides in a message, which ActiveMQ Classic hands on with a length that is too small.

A SEND with `amq-msg-type:text`, a content-length and bytes that are not UTF-8: the broker puts three bytes
for each of those, and repeats the length it was told. What the body has more than that reads like frames.

RabbitMQ repeats a length too, if an AMQP producer gives the header `content-length` twice. With an empty body
it is the only one.

Artemis and RabbitMQ tell the receipt that the producer has asked for: from it,
nobody may find out an id of the producer's connection.
"""

from __future__ import annotations

import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest

from airflow_provider_jmsjca import (
    Connection,
    Destination,
    JmsError,
    JmsMessage,
    Outgoing,
    PoisonMessageError,
    Subscription,
    connect,
)
from tests.hostile.amqp import Amqp
from tests.internals.transports import Received, StompConnection
from tests.servers.broker import Broker

DEADLINE = 15.0
ENDINGS = ["", *(f"{kind}{number}" for kind in ("", "s") for number in range(1, 10)), *"abcdef"]
"""How ids may go on after what connections have in common."""


def smuggling(frames: bytes, visible: bytes = b"") -> bytes:
    """Return a body whose end is taken for frames once the broker has blown it up.

    Args:
        frames: What is to be read as frames; the broker adds the last NUL.
        visible: What the body begins with.
    """
    tail = b"\0\n" + frames.removesuffix(b"\0\n")
    if len(tail) % 2:
        tail += b"\n"
    return visible + b"\xff" * (len(tail) // 2) + tail  # each of those bytes grows by two


@contextmanager
def hostile_producer(broker: Broker) -> Iterator[Callable[..., None]]:
    """A function that sends a body as ActiveMQ's text, over a socket of its own."""
    settings = broker.settings()
    host, port = settings.hosts[0]
    with socket.create_connection((host, port or 61613), timeout=DEADLINE) as sock:
        login = f"login:{settings.username}\npasscode:{settings.password}\n"
        sock.sendall(f"CONNECT\naccept-version:1.2\nhost:/\n{login}\n\0".encode())
        assert sock.recv(65536).startswith(b"CONNECTED")

        def send(queue: str, body: bytes, *headers: str) -> None:
            lines = "".join(f"{line}\n" for line in headers)
            head = f"SEND\ndestination:/queue/{queue}\npersistent:true\namq-msg-type:text\n{lines}"
            sock.sendall(f"{head}content-length:{len(body)}\nreceipt:r\n\n".encode() + body + b"\0")
            answer = sock.recv(65536)
            assert answer.startswith(b"RECEIPT"), answer

        yield send


class Inbox:
    """What came, as it can be read."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.changed = threading.Condition()

    def __call__(self, received: Received) -> None:
        with self.changed:
            self.received.append(received)
            self.changed.notify_all()

    def bodies(self) -> list[object]:
        found: list[object] = []
        for each in self.received:
            try:
                found.append(each.message.body)
            except PoisonMessageError:
                found.append(PoisonMessageError)
        return found

    def wait(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.received) >= count, DEADLINE), self.bodies()


@pytest.fixture
def names() -> tuple[str, str]:
    mark = uuid.uuid4().hex[:8]
    return f"public.{mark}", f"payments.{mark}"


def opened(broker: Broker) -> StompConnection:
    connection = connect(broker.settings(reply_timeout=timedelta(seconds=3)))
    assert isinstance(connection, StompConnection)
    return connection


def test_a_forged_message_reaches_nobody(activemq: Broker, names: tuple[str, str]) -> None:
    """Whoever may write to `public.*` alone must not write to the listener of `payments.*`."""
    public, payments = names
    forged = "".join(
        f"MESSAGE\nsubscription:s{n}\nmessage-id:evil\nack:evil\ndestination:/queue/{payments}\n\npay me\0\n"
        for n in range(1, 9)
    )
    body = smuggling(forged.encode())
    mine, theirs = Inbox(), Inbox()
    with hostile_producer(activemq) as send:
        send(public, body)
    connection = opened(activemq)
    try:
        connection.consume(Subscription(destination=Destination.queue(payments)), theirs)
        consumer = connection.consume(Subscription(destination=Destination.queue(public)), mine)
        mine.wait(1)
        assert theirs.bodies() == []
        assert mine.bodies() == [PoisonMessageError]
        salvaged = mine.received[0].salvaged
        assert salvaged is not None
        assert isinstance(salvaged.body, bytes)
        assert salvaged.body.rstrip().endswith(b"pay me")
        connection.send([Outgoing(destination=Destination.queue(payments), message=JmsMessage.text("good"))])
        theirs.wait(1)
        assert theirs.bodies() == ["good"]
        consumer.acknowledge(mine.received)
        connection.synchronize()
        theirs.received[0].consumer.acknowledge(theirs.received)
    finally:
        connection.close()
    assert remaining(activemq, public) == []


def test_a_forged_receipt_confirms_nothing(activemq: Broker, names: tuple[str, str]) -> None:
    """What the broker never got must not be reported as sent."""
    public, payments = names
    forged = "".join(f"RECEIPT\nreceipt-id:{n}\n\n\0\n" for n in range(1, 200))
    body = smuggling(forged.encode())
    inbox = Inbox()
    connection = opened(activemq)
    try:
        connection.consume(Subscription(destination=Destination.queue(public)), inbox)
        append, asked = connection.link.wire.append, threading.Event()

        def swallowing(data: bytes) -> bool:  # a broker that stands still takes nothing
            if data.startswith(b"SEND"):
                asked.set()
                return False
            return append(data)

        connection.link.wire.append = swallowing  # type: ignore[method-assign]
        outcome: list[object] = []

        def sending() -> None:
            try:
                message = Outgoing(destination=Destination.queue(payments), message=JmsMessage.text("x"))
                outcome.append(connection.send([message]))
            except JmsError as error:
                outcome.append(error)

        thread = threading.Thread(target=sending)
        thread.start()
        assert asked.wait(DEADLINE)
        with hostile_producer(activemq) as send:
            send(public, body)
        thread.join(DEADLINE)
        assert isinstance(outcome[0], JmsError)
    finally:
        connection.close()


HIDDEN = {
    "a message": b"MESSAGE\nsubscription:1\nmessage-id:evil\nack:evil\n\npay me",
    "a receipt": b"RECEIPT\nreceipt-id:1\n\n",
    "an error": b"ERROR\nmessage:forged\n\nforged",
    "an error with a length": b"ERROR\nmessage:forged\ncontent-length:6\n\nforged",
}


@pytest.mark.parametrize("hidden", HIDDEN.values(), ids=HIDDEN.keys())
def test_a_length_that_is_told_twice_hides_nothing(
    rabbitmq: Broker, names: tuple[str, str], hidden: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    public, _ = names
    inbox = Inbox()
    connection = opened(rabbitmq)
    try:
        connection.consume(Subscription(destination=Destination.queue(public)), inbox)
        body = b"hello\0\n" + hidden
        with Amqp(rabbitmq) as producer:
            producer.publish(public, [(b"content-length", b"5")] * 2, body)
            producer.publish(public, [], b"good")
            inbox.wait(2)
        assert inbox.bodies() == [PoisonMessageError, b"good"]
        salvaged = inbox.received[0].salvaged
        assert salvaged is not None
        assert salvaged.body == body
        assert connection.link.is_up
        assert "error" not in caplog.text
        inbox.received[0].consumer.acknowledge(inbox.received)
        connection.synchronize()
    finally:
        connection.close()


def test_a_length_that_is_told_of_nothing_swallows_nothing(rabbitmq: Broker, names: tuple[str, str]) -> None:
    """Whatever it is: one of these ends exactly where the next message does."""
    public, _ = names
    lengths = range(120, 280)
    inbox = Inbox()
    connection = opened(rabbitmq)
    try:
        connection.consume(Subscription(destination=Destination.queue(public)), inbox)
        with Amqp(rabbitmq) as producer:
            for length in lengths:
                producer.publish(public, [(b"content-length", b"%d" % length)] * 2, b"")
                producer.publish(public, [], b"good %d" % length)
            inbox.wait(2 * len(lengths))
        assert inbox.bodies()[1::2] == [b"good %d" % length for length in lengths]
        assert inbox.bodies()[::2] == [PoisonMessageError] * len(lengths)
        inbox.received[0].consumer.acknowledge(inbox.received)
        connection.synchronize()
    finally:
        connection.close()


def told_receipt(broker: Broker, queue: str) -> str:
    """Take a message from the queue; return the receipt that stands in it, empty if there is none."""
    settings = broker.settings()
    host, port = settings.hosts[0]
    name = queue if broker.name == "artemis" else f"/queue/{queue}"
    with socket.create_connection((host, port or 61613), timeout=DEADLINE) as sock:
        login = f"login:{settings.username}\npasscode:{settings.password}\n"
        sock.sendall(
            f"CONNECT\naccept-version:1.2\nhost:/\n{login}\n\0"
            f"SUBSCRIBE\nid:1\ndestination:{name}\nsubscription-type:ANYCAST\nack:auto\n\n\0".encode()
        )
        came = b""
        while not re.search(rb"MESSAGE\n.*\0", came, re.DOTALL):
            came += sock.recv(65536)
    found = re.search(rb"\nreceipt:(.*)\n", came)
    return found[1].decode() if found else ""


def test_a_receipt_that_is_told_gives_nothing_away(broker: Broker, names: tuple[str, str]) -> None:
    """Who reads what a connection sends, and writes to what it receives, must not know how its ids begin."""
    public, payments = names
    inbox = Inbox()
    connection = opened(broker)
    attacker = opened(broker)
    try:
        connection.consume(Subscription(destination=Destination.queue(payments)), inbox)
        connection.send([Outgoing(destination=Destination.queue(public), message=JmsMessage.text("read me"))])
        told = told_receipt(broker, public)
        assert bool(told) == (broker.name != "activemq")
        guesses = {told[:length] + ending for length in range(len(told) + 1) for ending in ENDINGS}
        forged = "".join(
            f"\0\nMESSAGE\nsubscription:{guess}\nmessage-id:evil\nack:evil\n\npay me\0\n"
            f"RECEIPT\nreceipt-id:{guess}\n\n"
            for guess in sorted(guesses)
        )
        # So long that its end isn't there yet when its beginning is read.
        body = forged.encode() + b"\0\n" * 300_000
        attacker.send(
            [
                Outgoing(destination=Destination.queue(payments), message=JmsMessage.bytes(body)),
                Outgoing(destination=Destination.queue(payments), message=JmsMessage.text("good")),
            ]
        )
        inbox.wait(1)
        assert inbox.bodies()[0] == body
        inbox.received[0].consumer.acknowledge(inbox.received)  # or Artemis sends no more for now
        inbox.wait(2)
        assert inbox.bodies()[1:] == ["good"]
        inbox.received[1].consumer.acknowledge(inbox.received[1:])
        connection.synchronize()
    finally:
        attacker.close()
        connection.close()


def test_the_next_message_is_not_swallowed(activemq: Broker, names: tuple[str, str]) -> None:
    """The head of a hidden frame without an end would make the next good message part of itself."""
    public, _ = names
    beginnings = (
        b"MESSAGE\nmessage-id:evil\nack:evil\nx:",
        b"MESSAGE\nsubscription:s1\ncontent-length:100000\n\n",
        b"MESSAGE\nsubscription:s1\nack:evil\n\n",
        b"MESSA",
        b"\n\n\n\0\n\0",
        b"ERROR\nmessage:stop\n\nall of it",
        b"CONNECTED\nversion:1.0\n\n",
    )
    inbox = Inbox()
    with hostile_producer(activemq) as send:
        for number, beginning in enumerate(beginnings):
            body = smuggling(beginning, visible=b"bad %d" % number)
            send(public, body)
            send(public, b"good %d" % number)
    connection: Connection | None = None
    good: list[object] = []
    bad = 0
    deadline = time.monotonic() + 2 * DEADLINE
    while len(good) < len(beginnings) or bad < len(beginnings):
        assert time.monotonic() < deadline, (good, bad)
        connection = opened(activemq)
        consumer = connection.consume(Subscription(destination=Destination.queue(public)), inbox := Inbox())
        lost = threading.Event()
        connection.on_lost(lambda _, lost=lost: lost.set())  # type: ignore[misc]
        with inbox.changed:
            left = 2 * len(beginnings) - len(good) - bad
            inbox.changed.wait_for(lambda: len(inbox.received) >= left or lost.is_set(), 2)  # noqa: B023
        if not lost.is_set():
            bodies = inbox.bodies()
            good += [body for body in bodies if str(body).startswith("good")]
            bad += sum(body is PoisonMessageError for body in bodies)
            consumer.acknowledge(inbox.received)
        connection.close()
    assert good == [f"good {number}" for number in range(len(beginnings))]
    assert remaining(activemq, public) == []


def remaining(broker: Broker, queue: str) -> list[object]:
    """Return what is left on a queue."""
    connection = opened(broker)
    try:
        return [message.body for message in connection.browse(Destination.queue(queue))]
    finally:
        connection.close()
