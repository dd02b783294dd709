"""What a broker's STOMP lets through at best: frames on a socket, with no client."""

from __future__ import annotations

import queue
import socket
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from typing import ClassVar

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.engine.session.connection import JmsConnection
from airflow_provider_jmsjca.engine.session.session import AcknowledgeMode
from airflow_provider_jmsjca.transports import connect
from tests.bench.filling import fill
from tests.bench.rates import (
    BARE,
    BODY,
    INDIVIDUAL,
    LISTENER_CC,
    PATIENCE,
    PUBLISH,
    PUBLISH_BYTES,
    PUBLISH_TRANSACTION,
    SESSIONS,
    Measured,
    Meter,
)
from tests.bench.rival import Leg, new_queue
from tests.servers.activemq import ActiveMQClassic
from tests.servers.broker import Broker

_MOST_UNSENT = 100
_PREFETCH = b"activemq.prefetchSize:1000\nprefetch-count:1000\n"


class BareSocket:
    """Sends nothing that can be done without; waits for each commit, and knows only headers and text."""

    who: ClassVar[str] = BARE

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._commits = isinstance(broker, ActiveMQClassic)

    def manner(self) -> str:
        """Return how it works and what it waits for."""
        confirmed = "commit" if self._commits else "message"
        return (
            f"one connection; frames made before the clock starts, each {confirmed} confirmed; one thread "
            f"reads and hands each frame to one of {SESSIONS} over a queue.SimpleQueue; that one reads the "
            f"headers and the text, and acknowledges it, up to {_MOST_UNSENT} with one write: a client in "
            "Python that works this way can't be faster"
        )

    def legs(self) -> Mapping[str, Leg]:
        """Return its pieces of work; it commits where transactions over STOMP are atomic."""
        committing: dict[str, Leg] = {PUBLISH_BYTES: self._publish_bytes, INDIVIDUAL: self._publish_text}
        confirming: dict[str, Leg] = {PUBLISH_BYTES: self._publish_confirmed}
        return {LISTENER_CC: self._hand_over} | (committing if self._commits else confirming)

    def close(self) -> None:
        """Nothing is left open."""

    def _publish_text(self, messages: int) -> Iterator[Measured]:
        yield self._publish(PUBLISH, messages, b"")

    def _publish_bytes(self, messages: int) -> Iterator[Measured]:
        yield self._publish(PUBLISH_BYTES, messages, b"content-length:%d\n" % len(BODY))

    def _publish(self, what: str, messages: int, length: bytes) -> Measured:
        queue, meter = new_queue(), Meter(self._broker)
        transactions = []
        for number, first in enumerate(range(0, messages, PUBLISH_TRANSACTION)):
            head = b"SEND\ndestination:/queue/%b\npersistent:true\ntransaction:t%d\n%b" % (
                queue.encode(),
                number,
                length,
            )
            count = min(PUBLISH_TRANSACTION, messages - first)
            transactions.append(
                b"BEGIN\ntransaction:t%d\n\n\0" % number
                + b"%b\n%b\0" % (head, BODY.encode()) * count
                + b"COMMIT\ntransaction:t%d\nreceipt:r%d\n\n\0" % (number, number)
            )
        with self._connected() as connection:
            meter.start()
            for transaction in transactions:
                connection.sendall(transaction)
                _await(connection, b"RECEIPT")
            meter.stop()
        self._drain(queue, messages)
        return meter.result(what, self.who, messages)

    def _publish_confirmed(self, messages: int) -> Iterator[Measured]:
        queue, meter, body = new_queue(), Meter(self._broker), BODY.encode()
        rest = b"destination:/queue/%b\npersistent:true\ncontent-length:%d\n\n%b\0" % (
            queue.encode(), len(body), body
        )  # fmt: skip
        # Receipts as long as ours, for each character costs RabbitMQ time.
        frames = [b"SEND\nreceipt:%04x\n%b" % (number, rest) for number in range(messages)]
        parts = [frames[at : at + PUBLISH_TRANSACTION] for at in range(0, messages, PUBLISH_TRANSACTION)]
        with self._connected() as connection:
            meter.start()
            for part in parts:
                connection.sendall(b"".join(part))
                missing = len(part)
                while missing:
                    missing -= connection.recv(65_536).count(b"\0")
            meter.stop()
        self._drain(queue, messages)
        yield meter.result(PUBLISH_BYTES, self.who, messages)

    def _connected(self) -> socket.socket:
        connection = socket.create_connection(self._broker.settings().hosts[0], PATIENCE)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(
            b"CONNECT\naccept-version:1.2\nhost:/\nlogin:%b\npasscode:%b\n\n\0"
            % (self._broker.username.encode(), self._broker.password.encode())
        )
        _await(connection, b"CONNECTED")
        return connection

    def _hand_over(self, messages: int) -> Iterator[Measured]:
        name, meter = new_queue(), Meter(self._broker)
        fill(self._broker.settings(), name, messages)
        with self._connected() as connection:
            threads = _Threads(connection, messages)
            meter.start()
            connection.sendall(
                b"SUBSCRIBE\nid:1\ndestination:/queue/%b\nack:client-individual\n%b\n\0"
                % (name.encode(), _PREFETCH)
            )
            threads.read()
            meter.stop()
        yield meter.result(LISTENER_CC, self.who, messages)

    def _drain(self, queue: str, messages: int) -> None:
        with (
            JmsConnection(connect(self._broker.settings())) as connection,
            connection.session(acknowledge_mode=AcknowledgeMode.DUPS_OK, prefetch=500) as session,
        ):
            for _ in range(messages):
                assert session.receive(Destination.queue(queue), timeout=PATIENCE) is not None


class _Threads:
    """Hands what a connection brings to threads, frame by frame."""

    def __init__(self, connection: socket.socket, messages: int) -> None:
        self._connection = connection
        self._messages = messages
        self._frames: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._unsent: deque[bytes] = deque()
        self._writing = threading.Lock()
        self._threads = [threading.Thread(target=self._settle, daemon=True) for _ in range(SESSIONS)]
        for thread in self._threads:
            thread.start()

    def read(self) -> None:
        """Hand everything over; return when all of it is acknowledged."""
        left, rest = self._messages, b""
        while left:
            *frames, rest = (rest + self._connection.recv(65_536)).split(b"\0")
            for frame in frames:
                self._frames.put(frame)
            left -= len(frames)
            self._send(1)
        for _ in self._threads:
            self._frames.put(None)
        for thread in self._threads:
            thread.join(PATIENCE)
        self._send(1)

    def _settle(self) -> None:
        while (frame := self._frames.get()) is not None:
            head, _, body = frame.lstrip().partition(b"\n\n")
            headers = dict(line.split(":", 1) for line in head.decode().split("\n")[1:])
            assert body.decode()
            self._unsent.append(b"ACK\nid:%b\n\n\0" % headers["ack"].encode())
            self._send(_MOST_UNSENT)

    def _send(self, least: int) -> None:
        if len(self._unsent) < least:
            return
        with self._writing:
            count = len(self._unsent)
            self._connection.sendall(b"".join([self._unsent.popleft() for _ in range(count)]))


def _await(connection: socket.socket, command: bytes) -> None:
    frame = b""
    while b"\0" not in frame:
        frame += connection.recv(65_536)
    assert frame.lstrip(b"\r\n").startswith(command + b"\n"), frame
