"""stomp.py's protocol object."""

from __future__ import annotations

from typing import Any

import stomp

from airflow_provider_jmsjca.transports.stomp.wire import Wire


class Client(stomp.connect.BaseConnection, stomp.connect.Protocol12):  # type: ignore[misc] # no types
    """stomp.py's connection object on our wire."""

    def __init__(self, wire: Wire) -> None:
        stomp.connect.BaseConnection.__init__(self, wire)
        # No heart-beats of stomp.py's own: they need another thread, and count only whole frames.
        stomp.connect.Protocol12.__init__(self, wire, heartbeats=(0, 0), auto_content_length=False)

    def send_frame(self, cmd: str, headers: dict[str, Any] | None = None, body: bytes = b"") -> None:
        """Encode a frame and send it."""
        super().send_frame(cmd, headers, body)
