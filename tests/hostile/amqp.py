"""An AMQP 0.9.1 producer on a bare socket: it says what no client library lets one say.

Source: AMQP 0-9-1, "General Frame Format", "Class Grammar".
"""

from __future__ import annotations

import socket
import struct
from typing import Final, Self

from tests.servers.broker import Broker
from tests.servers.ports import HOST

_DEADLINE: Final = 15.0
_METHOD, _HEADER, _BODY = 1, 2, 3
_FRAME_MAX: Final = 131_072
_MOST_CHANNELS: Final = 2047
_HAS_HEADERS: Final = 0x2000


class Amqp:
    """A connection to RabbitMQ's AMQP port with one channel."""

    def __init__(self, broker: Broker) -> None:
        self._socket = socket.create_connection((HOST, broker.ports["amqp"]), timeout=_DEADLINE)
        self._socket.sendall(b"AMQP\0\0\x09\x01")
        self._await()  # Start
        plain = f"\0{broker.username}\0{broker.password}".encode()
        self._method(0, 10, 11, _long(b"") + _short(b"PLAIN") + _long(plain) + _short(b"en_US"))
        self._await()  # Tune
        self._method(0, 10, 31, struct.pack(">HIH", _MOST_CHANNELS, _FRAME_MAX, 0))
        self._method(0, 10, 40, _short(b"/") + _short(b"") + b"\0")
        self._await()  # OpenOk
        self._method(1, 20, 10, _short(b""))
        self._await()  # OpenOk of the channel

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()

    def publish(self, queue: str, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """Send a message to a queue; a header may have any name, and more than one value."""
        table = b"".join(_short(name) + b"S" + _long(value) for name, value in headers)
        self._method(1, 60, 40, struct.pack(">H", 0) + _short(b"") + _short(queue.encode()) + b"\0")
        self._frame(_HEADER, 1, struct.pack(">HHQH", 60, 0, len(body), _HAS_HEADERS) + _long(table))
        if body:
            self._frame(_BODY, 1, body)

    def _method(self, channel: int, of_class: int, number: int, arguments: bytes) -> None:
        self._frame(_METHOD, channel, struct.pack(">HH", of_class, number) + arguments)

    def _frame(self, kind: int, channel: int, payload: bytes) -> None:
        self._socket.sendall(struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce")

    def _await(self) -> None:
        """Read one frame."""
        size = struct.unpack(">I", self._read(7)[3:])[0]
        self._read(size + 1)

    def _read(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            more = self._socket.recv(size - len(found))
            assert more, "the broker closed the connection"
            found += more
        return found


def _short(text: bytes) -> bytes:
    return struct.pack(">B", len(text)) + text


def _long(text: bytes) -> bytes:
    return struct.pack(">I", len(text)) + text
