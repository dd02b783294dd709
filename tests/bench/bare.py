"""What a broker's STOMP lets through at best: frames prepared in advance, on a socket, with no client."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from typing import ClassVar

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.engine.session.connection import JmsConnection
from airflow_provider_jmsjca.engine.session.session import AcknowledgeMode
from airflow_provider_jmsjca.transports import connect
from tests.bench.rates import (
    BARE,
    BODY,
    INDIVIDUAL,
    PATIENCE,
    PUBLISH,
    PUBLISH_BYTES,
    PUBLISH_TRANSACTION,
    Measured,
    Meter,
)
from tests.bench.rival import Leg, new_queue
from tests.servers.activemq import ActiveMQClassic
from tests.servers.broker import Broker
from tests.servers.errors import ServerUnavailableError


class BareSocket:
    """Sends nothing that can be done without, and waits for each commit.

    Raises:
        ServerUnavailableError: The broker's STOMP has no transactions to speak of.
    """

    who: ClassVar[str] = BARE

    def __init__(self, broker: Broker) -> None:
        if not isinstance(broker, ActiveMQClassic):
            raise ServerUnavailableError(f"{broker.name} has no atomic transactions over STOMP")
        self._broker = broker

    def manner(self) -> str:
        """Return how it works and what it waits for."""
        return (
            "STOMP frames made before the clock starts, one connection, each commit confirmed: a client that "
            "waits for its commits can't be faster"
        )

    def legs(self) -> Mapping[str, Leg]:
        """Return its pieces of work."""
        return {PUBLISH_BYTES: self._publish_bytes, INDIVIDUAL: self._publish_text}

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
        with socket.create_connection(self._broker.settings().hosts[0], PATIENCE) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(
                b"CONNECT\naccept-version:1.2\nhost:/\nlogin:%b\npasscode:%b\n\n\0"
                % (self._broker.username.encode(), self._broker.password.encode())
            )
            _await(connection, b"CONNECTED")
            meter.start()
            for transaction in transactions:
                connection.sendall(transaction)
                _await(connection, b"RECEIPT")
            meter.stop()
        self._drain(queue, messages)
        return meter.result(what, self.who, messages)

    def _drain(self, queue: str, messages: int) -> None:
        with (
            JmsConnection(connect(self._broker.settings())) as connection,
            connection.session(acknowledge_mode=AcknowledgeMode.DUPS_OK, prefetch=500) as session,
        ):
            for _ in range(messages):
                assert session.receive(Destination.queue(queue), timeout=PATIENCE) is not None


def _await(connection: socket.socket, command: bytes) -> None:
    frame = b""
    while b"\0" not in frame:
        frame += connection.recv(65_536)
    assert frame.lstrip(b"\r\n").startswith(command + b"\n"), frame
