"""A broker that cuts, stalls, lies and floods at every step; the next connection finds a good one.

A bare connection meets every fault at every step. So does each kind of consumer with `JMSJCA_CHAOS=full`;
otherwise each of them meets every fault once, and every step several times.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import psutil
import pytest

from airflow_provider_jmsjca import (
    Connection,
    ConnectionSettings,
    Delivery,
    Destination,
    JmsConnection,
    JmsError,
    JmsMessage,
    Outgoing,
    PoisonMessageError,
    Subscription,
    connect,
)
from tests.broker.listening import activation
from tests.broker.test_stream import streaming, until
from tests.internals.collecting import BatchSpec, collect
from tests.internals.core import Backoff
from tests.internals.engine import RetryPolicy, open_connection
from tests.internals.spool import SpoolBatch
from tests.internals.transports import Received
from tests.pace import at_most
from tests.servers.stomp_peer import (
    ACTIVEMQ,
    Fault,
    ScriptedBroker,
    cut,
    flooding,
    half,
    misstating,
    reset,
    saying,
    scripted_broker,
    stall,
)

QUEUE = Destination.queue("q")
DEADLINE = 25.0
SILENCE = 1.0
"""Seconds after which a consumer gives up a broker that says nothing, and comes again."""
MOST_MEMORY = 64 * 1024 * 1024
FULL = os.environ.get("JMSJCA_CHAOS") == "full"
STEPS = ("accept", "CONNECT", "SUBSCRIBE", "MESSAGE", "BEGIN", "SEND", "ACK", "COMMIT", "DISCONNECT")
PIECE = 64 * 1024
FAULTS: dict[str, Fault] = {
    "cut": cut,
    "reset": reset,
    "stall": stall,
    "half": half,
    "another protocol": saying(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    "an error": saying(b"ERROR\nmessage:not now\n\nbecause\0\n"),
    "an error with a bad escape": saying(b"ERROR\nmessage:a\\tb\n\n\0\n"),
    "a receipt of nobody": saying(b"RECEIPT\nreceipt-id:7\n\n\0\n"),
    "a message of nobody": saying(b"MESSAGE\nsubscription:s1\nmessage-id:1\nack:evil\n\nx\0\n"),
    "a message without an ack": saying(b"MESSAGE\nsubscription:s1\n\nx\0\n"),
    "CONNECTED": saying(b"CONNECTED\nversion:1.2\n\n\0\n"),
    "a bad heart-beat": saying(b"CONNECTED\nversion:1.2\nheart-beat:x\n\n\0\n"),
    "a bad length": saying(b"RECEIPT\nreceipt-id:1\ncontent-length:many\n\n\0\n"),
    "a length that is too small": saying(b"RECEIPT\nreceipt-id:1\ncontent-length:1\n\nlonger\0\n"),
    "a terabyte": flooding(b"MESSAGE\ncontent-length:1000000000000\n\n", b"x" * PIECE),
    "a head without an end": flooding(b"MESSAGE\n", b"a:" + b"b" * PIECE),
    "headers without an end": flooding(b"MESSAGE\n", b"a:b\n" * (PIECE // 4)),
    "a body without an end": flooding(b"ERROR\nmessage:x\n\n", b"x" * PIECE),
    "a line without an end": flooding(b"", b"x" * PIECE),
}


def settings(port: int) -> ConnectionSettings:
    return ConnectionSettings(
        scheme="stomp",
        hosts=(("127.0.0.1", port),),
        connect_timeout=timedelta(milliseconds=500),
        reply_timeout=timedelta(milliseconds=500),
        heart_beat=timedelta(0),
        max_frame_size=4 * 1024 * 1024,
    )


def handle_one(connection: Connection, handled: set[str]) -> bool:
    """Receive a message, send an answer and settle it in one unit of work; say whether one came."""
    came: list[Received] = []
    arrived = threading.Event()

    def take(received: Received) -> None:
        came.append(received)
        arrived.set()

    connection.on_lost(lambda _: arrived.set())
    connection.consume(Subscription(destination=QUEUE), take)
    if not arrived.wait(1) or not came:
        return False
    try:
        assert came[0].message.body == "hello"
    except PoisonMessageError:
        return False
    handled.add(bytes(came[0].token).decode(errors="surrogateescape"))  # type: ignore[call-overload]
    unit = connection.unit()
    unit.send(Outgoing(destination=QUEUE, message=JmsMessage.text("answer")))
    unit.acknowledge(came[0])
    unit.commit()
    return True


@contextlib.contextmanager
def bounded(peer: ScriptedBroker) -> Iterator[Callable[[], object]]:
    """Assert that memory, threads and time are bounded, and that nothing was acknowledged that never came.

    Yields:
        To be called now and then: asserts that there is time left.
    """
    threads, memory = set(threading.enumerate()), psutil.Process().memory_info().rss
    began, highest = time.monotonic(), memory

    def look() -> None:
        nonlocal highest
        assert time.monotonic() - began < at_most(DEADLINE)
        highest = max(highest, psutil.Process().memory_info().rss)

    yield look
    look()
    assert highest - memory < MOST_MEMORY
    assert {"evil", ""}.isdisjoint(peer.acknowledged)
    while left := {each for each in threading.enumerate() if each not in threads and not peer.owns(each)}:
        assert time.monotonic() - began < at_most(DEADLINE), left
        time.sleep(0.01)


def one_is_handled(
    peer: ScriptedBroker, look: Callable[[], object], first: Callable[[Connection], object] | None = None
) -> None:
    """Connect until a message is handled; do something else over the first connection, if that is given."""
    handled: set[str] = set()
    done = False
    while not done:
        connection: Connection | None = None
        try:
            connection = connect(settings(peer.port))
            if first is not None and peer.connections == 1:
                first(connection)
            else:
                done = handle_one(connection, handled)
        except JmsError:
            done = False
        finally:
            look()
            if connection is not None:
                connection.close()
    assert set(peer.acknowledged) <= handled
    assert peer.sent >= 1


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_a_connection_ends_with_an_error_of_ours_or_recovers(step: str, fault: Fault) -> None:
    with scripted_broker(fault, step=step) as peer, bounded(peer) as look:
        one_is_handled(peer, look)


def by_session(to: ConnectionSettings, folder: Path) -> bool:
    del folder
    with JmsConnection(connect(to)) as connection, connection.session(transacted=True) as session:
        message = session.receive(QUEUE, timeout=1)
        if message is None or message.body != "hello":
            return False
        session.send(QUEUE, JmsMessage.text("answer"))
        session.commit()
        return True


def by_listener(to: ConnectionSettings, folder: Path) -> bool:
    del folder
    got: list[object] = []

    def answer(delivery: Delivery) -> None:
        got.append(delivery.body)
        delivery.send(QUEUE, JmsMessage.text("answer"))

    counts = activation(to, QUEUE.name, answer).run(
        max_messages=1, idle_for=SILENCE, run_for=3 * SILENCE, within=2
    )
    return counts.committed == 1 and set(got) == {"hello"}


def by_stream(to: ConnectionSettings, folder: Path) -> bool:
    del folder

    async def work() -> bool:
        async with streaming(to, QUEUE.name) as stream:
            try:
                delivery = await asyncio.wait_for(anext(stream), SILENCE)
            except TimeoutError:
                return False
            delivery.returned()
            await until(lambda: stream.counts.settled)
            return delivery.message.body == "hello"

    return asyncio.run(asyncio.wait_for(work(), at_most(DEADLINE)))


def by_collector(to: ConnectionSettings, folder: Path) -> bool:
    silence = timedelta(seconds=SILENCE)
    spec = BatchSpec(subscription=Subscription(destination=QUEUE), max_messages=1, idle_time=silence)
    policy = RetryPolicy(backoff=Backoff(steps=(timedelta(milliseconds=50),)))
    with SpoolBatch(folder / uuid.uuid4().hex, "b", source=QUEUE.name, activation="a") as batch:
        result = collect(partial(open_connection, to, policy=policy), batch, spec, stop=threading.Event())
    return result.rows == 1


CONSUMERS = (by_session, by_listener, by_stream, by_collector)
MEETINGS = [
    pytest.param(consumer, step, fault, id=f"{consumer.__name__}-{step}-{name}")
    for turn, consumer in enumerate(CONSUMERS)
    for number, (name, fault) in enumerate(FAULTS.items())
    for place, step in enumerate(STEPS)
    if FULL or (number + turn * 2) % len(STEPS) == place
]


@pytest.mark.parametrize(("consumer", "step", "fault"), MEETINGS)
def test_a_consumer_ends_with_an_error_of_ours_or_recovers(
    consumer: Callable[[ConnectionSettings, Path], bool], step: str, fault: Fault, tmp_path: Path
) -> None:
    with scripted_broker(fault, step=step) as peer, bounded(peer) as look:
        done = False
        while not done:
            with contextlib.suppress(JmsError):
                done = consumer(settings(peer.port), tmp_path)
            look()
        # What a batch has sealed and not acknowledged the next one knows.
        assert peer.acknowledged or consumer is by_collector


SERVERS = (ACTIVEMQ, "ActiveMQ-Artemis/2.56.0", "RabbitMQ/4.2.1", "Unheard-of/1.0")
UNREADABLE = {"none": None, "empty": b"", "no text": b"\xff\xfe@@s@@1", "a bad escape": b"a\\t@@s@@1"}
READ = (
    ("MESSAGE", b"ack"),
    ("MESSAGE", b"message-id"),
    ("MESSAGE", b"subscription"),
    ("MESSAGE", b"destination"),
    ("SUBSCRIBE", b"receipt-id"),
    ("UNSUBSCRIBE", b"receipt-id"),
)


def hand_back(connection: Connection) -> None:
    """Receive a message, hand it back, receive it again, and end the subscription while it is unsettled."""
    came: queue.SimpleQueue[Received | None] = queue.SimpleQueue()
    connection.on_lost(lambda _: came.put(None))
    consumer = connection.consume(Subscription(destination=QUEUE), came.put)
    for end in (consumer.recover, consumer.close):
        received = came.get(timeout=at_most(5))
        if received is None:
            return
        assert received.readable is not None
        end()


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize(("step", "header"), READ)
@pytest.mark.parametrize("value", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_what_is_unreadable_of_what_a_dialect_reads_costs_a_connection_at_most(
    server: str, step: str, header: bytes, value: bytes | None
) -> None:
    with scripted_broker(misstating(header, value), step=step, server=server) as peer, bounded(peer) as look:
        one_is_handled(peer, look, first=hand_back)


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("token", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_a_listener_that_hands_back_what_it_cannot_name_goes_on(server: str, token: bytes | None) -> None:
    """W27: suspended while it handles one message, it hands back the one behind that."""
    came, finish = threading.Event(), threading.Event()

    def one_and_another(client: socket.socket, message: bytes, over: threading.Event) -> None:
        client.sendall(message)
        misstating(b"ack", token)(client, message, over)

    def handle(_: Delivery) -> None:
        came.set()
        assert finish.wait(at_most(DEADLINE))

    # Had it acknowledged the first one before the fault, it wouldn't handle that again: others come later.
    broker = scripted_broker(one_and_another, step="MESSAGE", server=server, new_messages=True)
    with broker as peer, bounded(peer) as look, contextlib.ExitStack() as at_last:
        listening = activation(settings(peer.port), QUEUE.name, handle)
        listening.start()
        at_last.callback(listening.stop)
        assert came.wait(at_most(DEADLINE))
        listening.suspend()
        finish.set()
        while listening.consuming.is_set():
            look()
            time.sleep(0.01)
        committed = listening.counts.committed
        listening.resume()
        while listening.counts.committed == committed:
            assert not listening.is_closed, listening.stop_reason
            look()
            time.sleep(0.01)
