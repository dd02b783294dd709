"""A broker that cuts, stalls, lies and floods at every step; the next connection finds a good one."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import psutil
import pytest

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.errors import JmsError, PoisonMessageError
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import (
    Connection,
    ConnectionSettings,
    Outgoing,
    Received,
    Subscription,
)
from tests.servers.stomp_peer import Fault, cut, flooding, half, reset, saying, scripted_broker, stall

QUEUE = Destination.queue("q")
DEADLINE = 25.0
MOST_MEMORY = 64 * 1024 * 1024
STEPS = ("accept", "CONNECT", "SUBSCRIBE", "MESSAGE", "BEGIN", "COMMIT", "DISCONNECT")
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
    handled.add(bytes(came[0].token).decode())  # type: ignore[call-overload]
    unit = connection.unit()
    unit.send(Outgoing(destination=QUEUE, message=JmsMessage.text("answer")))
    unit.acknowledge(came[0])
    unit.commit()
    return True


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_the_client_ends_with_an_error_of_ours_or_recovers(step: str, fault: Fault) -> None:
    threads, memory = set(threading.enumerate()), psutil.Process().memory_info().rss
    deadline = time.monotonic() + DEADLINE
    handled: set[str] = set()
    highest = 0
    done = False
    with scripted_broker(fault, step=step) as peer:
        while not done:
            assert time.monotonic() < deadline
            connection: Connection | None = None
            try:
                connection = connect(settings(peer.port))
                done = handle_one(connection, handled)
            except JmsError:
                done = False
            finally:
                highest = max(highest, psutil.Process().memory_info().rss)
                if connection is not None:
                    connection.close()
        assert set(peer.acknowledged) <= handled
        assert peer.sent >= 1
    assert highest - memory < MOST_MEMORY
    while left := set(threading.enumerate()) - threads:
        assert time.monotonic() < deadline, left
        time.sleep(0.01)
