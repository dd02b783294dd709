"""The dialect of unknown servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import Body, BodyKind, JmsMessage
from airflow_provider_jmsjca.transports.base import Capabilities, Subscription
from airflow_provider_jmsjca.transports.stomp.dialects.dialect import (
    BODY_KIND,
    BYTES,
    EMPTY,
    TEXT,
    Dialect,
    Headers,
    bytes_of,
    decode_text,
    marked_kind,
    text_of,
)
from airflow_provider_jmsjca.transports.stomp.dialects.settlement import Recovery
from airflow_provider_jmsjca.transports.stomp.wire.frames import Frame


class GenericDialect(Dialect):
    """Plain STOMP 1.2: the behaviour common to all servers, without further guarantees.

    Unsettled messages are returned by closing the connection, because all servers handle that alike.
    """

    product: ClassVar[str] = "unknown"
    counts_messages: ClassVar[bool] = False
    capabilities: ClassVar[Capabilities] = Capabilities()
    decisive: ClassVar[Mapping[str, frozenset[str]]] = {"content-type": frozenset()}

    def subscribe(self, subscription: Subscription, client_id: str | None) -> dict[str, str]:
        """Return the headers of SUBSCRIBE."""
        del client_id
        return {"destination": self.destination(subscription.destination)}

    def recovery(self, subscription: Subscription) -> Recovery:
        """Return `DISCONNECT`, because unsettled messages return only when the connection closes."""
        del subscription
        return Recovery.DISCONNECT

    def destination(self, destination: Destination) -> str:
        """Return the `destination` header."""
        return f"/{destination.kind}/{destination.name}"

    def encode_body(self, headers: Headers, message: JmsMessage) -> bytes:
        """Return the body, and mark its kind in a header."""
        body = bytes_of(message) if message.body_kind is BYTES else text_of(message).encode()
        headers.append((BODY_KIND, message.body_kind))
        headers.append(("content-length", str(len(body))))
        return body

    def decode_body(self, frame: Frame, headers: Mapping[str, str]) -> tuple[BodyKind, Body]:
        """Decode the body; determine its kind by this package's marker header, else by the content type."""
        kind = marked_kind(headers)
        if kind is EMPTY:
            return EMPTY, None
        if kind is TEXT or (kind is None and headers.get("content-type", "").startswith("text/")):
            return TEXT, decode_text(frame.body)
        return BYTES, frame.body

    def lasting(self, identifier: str) -> str | None:
        """Return `None`: the ids of an unknown server may change on redelivery."""
        del identifier
        return None
