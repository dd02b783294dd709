"""The greeting of a connection, built with stomp.py: the CONNECT frame and the agreed heart-beats.

No other module imports stomp.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from stomp.protocol import Protocol12
from stomp.utils import calculate_heartbeats, convert_frame

from airflow_provider_jmsjca.transports.stomp.wire.frames import ProtocolError

_MOST_DIGITS: Final = 10


class _FrameBuffer:
    """Replaces stomp.py's transport, and keeps the encoded frame.

    Args:
        vhost: Value of the `host` header.
    """

    def __init__(self, vhost: str) -> None:
        self.current_host_and_port = (vhost, 0)
        self.vhost = vhost
        self.data = b""

    def set_listener(self, name: str, listener: object) -> None:
        """Ignore the listener: for heart-beats, stomp.py would start a thread of its own."""

    def transmit(self, frame: Any) -> None:
        """Keep the encoded frame."""
        self.data = b"".join(convert_frame(frame))


def connect_frame(
    username: str | None, password: str | None, virtual_host: str, headers: Mapping[str, str]
) -> bytes:
    """Return the encoded CONNECT frame.

    The command is CONNECT instead of STOMP: its headers are not escaped, so any password can be sent.

    Args:
        username: The login; `None`: send no login.
        password: The passcode; `None`: send no passcode.
        virtual_host: Value of the `host` header.
        headers: Further headers.
    """
    buffer = _FrameBuffer(virtual_host)
    client = Protocol12(buffer, heartbeats=(0, 0), auto_content_length=False)
    client.connect(username, password, headers=dict(headers), with_connect_command=True)
    return buffer.data


def agreed_heart_beats(broker: str, own: tuple[int, int]) -> tuple[int, int]:
    """Return the heart-beat intervals that both sides agreed on.

    Args:
        broker: The `heart-beat` header of CONNECTED.
        own: The two numbers in the `heart-beat` header of CONNECT, in milliseconds.

    Returns:
        The intervals of this client and of the broker in milliseconds; 0 means no heart-beats.

    Raises:
        ProtocolError: The header is not two numbers of milliseconds.
    """
    first, _, second = (part.strip() for part in broker.partition(","))
    for each in (first, second):
        if not (each.isascii() and each.isdigit() and len(each) <= _MOST_DIGITS):
            raise ProtocolError(f"the broker's heart-beat {broker[:40]!r} isn't two numbers of milliseconds")
    send, receive = calculate_heartbeats((first, second), own)
    return send, receive
