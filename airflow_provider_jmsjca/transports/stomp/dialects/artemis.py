"""Apache Artemis."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar, Final

from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.core.message import Body, BodyKind, JmsMessage
from airflow_provider_jmsjca.core.name_syntax import NameSyntax
from airflow_provider_jmsjca.errors import CapabilityError, ConfigurationError, PoisonMessageError
from airflow_provider_jmsjca.transports.base import BrokerInfo, Capabilities, Outgoing, Subscription
from airflow_provider_jmsjca.transports.stomp.dialects.dialect import (
    BODILESS,
    BODILESS_KINDS,
    BODY_KIND,
    BYTES,
    EMPTY,
    RESERVED,
    TEXT,
    Command,
    Dialect,
    Headers,
    bytes_of,
    decode_text,
    marked_kind,
    no_body,
    text_of,
)
from airflow_provider_jmsjca.transports.stomp.dialects.settlement import AdministrationKind, Recovery
from airflow_provider_jmsjca.transports.stomp.wire.frames import ACK, Frame

DEFAULT_WINDOW: Final = 1024 * 1024
BYTES_PER_MESSAGE: Final = 1500
_HIDDEN: Final = RESERVED | {
    "destination-type",
    "subscription-type",
    "_AMQ_DUPL_ID",
    "_AMQ_LARGE_SIZE",
    "_AMQ_SCHED_DELIVERY",
    "AMQ_SCHEDULED_DELAY",
}
_ROUTING: Final = {DestinationKind.QUEUE: "ANYCAST", DestinationKind.TOPIC: "MULTICAST"}
_KINDS: Final = {"ANYCAST": DestinationKind.QUEUE, "MULTICAST": DestinationKind.TOPIC}
_OUTSIDE_QUOTES: Final = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"|\bJMS[A-Za-z]+\b")
_SELECTOR_NAMES: Final = {
    "JMSPriority": "AMQPriority",
    "JMSTimestamp": "AMQTimestamp",
    "JMSExpiration": "AMQExpiration",
    "JMSType": "JMSType",
    "JMSCorrelationID": "JMSCorrelationID",
    "JMSXGroupID": "_AMQ_GROUP_ID",
}
# Measured with the broker's own configuration; a record has some bytes more than the headers.
_HEADERS: Final = 500_800
_LARGE_BODY: Final = 102_200
_LARGE_BODY_HEADERS: Final = 101_700
_OVERHEAD: Final = 10
_FEW_CHARACTERS: Final = 20_000


class ArtemisDialect(Dialect):
    """Artemis: its ACK ignores transactions and its NACK destroys the message, so it gets neither.

    A Java map or stream message arrives as a few bytes, which aren't its body, and an object message without
    its body; so do a Java message that has none and text that is empty or null. All of them are undecodable,
    unless this package sent them.
    Text that holds NUL travels as bytes with our marker: it comes back as text to this package, and as a
    bytes message to Java.
    """

    product: ClassVar[str] = "artemis"
    names: ClassVar[NameSyntax] = NameSyntax(any_word="*", any_words="#", qualifier="::")
    counts_messages: ClassVar[bool] = False
    administration: ClassVar[AdministrationKind] = AdministrationKind.MANAGEMENT_ADDRESS
    capabilities: ClassVar[Capabilities] = Capabilities(
        deduplicating_send=True,
        redelivered_flag=True,
        stable_message_id=True,
        selector=True,
        backlog=True,
        durable_subscription=True,
        delayed_delivery=True,
        priority=True,
        message_groups=True,
        max_property_characters=100_000,
    )
    cancelled: ClassVar[str] = "disconnected by server"
    hidden: ClassVar[frozenset[str]] = _HIDDEN
    unread: ClassVar[frozenset[str]] = Dialect.unread | {
        "_AMQ_LARGE_SIZE",
        "_AMQ_SCHED_DELIVERY",
        "AMQ_SCHEDULED_DELAY",
    }
    taken: ClassVar[frozenset[str]] = _HIDDEN
    consumer_options: ClassVar[frozenset[str]] = frozenset({"no-local"})
    reading_options: ClassVar[frozenset[str]] = frozenset({BODILESS})
    choices: ClassVar[Mapping[str, frozenset[str]]] = {BODILESS: BODILESS_KINDS}

    def check(self, subscription: Subscription, broker: BrokerInfo, client_id: str | None) -> None:
        """Refuse selectors on names that match nothing."""
        super().check(subscription, broker, client_id)
        if subscription.selector:
            _selector(self.portable(subscription.selector))

    def subscribe(self, subscription: Subscription, client_id: str | None) -> dict[str, str]:
        """Return the headers of SUBSCRIBE."""
        del client_id
        headers = {
            "destination": subscription.destination.name,
            "subscription-type": _ROUTING[subscription.destination.kind],
            "consumer-window-size": str(self.window(subscription)),
        }
        if subscription.selector:
            headers["selector"] = _selector(self.portable(subscription.selector))
        if subscription.durable_name is not None:
            headers["durable-subscription-name"] = subscription.durable_name
        return headers

    def window(self, subscription: Subscription) -> int:
        """Return how many bytes the broker may have outstanding."""
        return max(_window(subscription.prefetch), subscription.prefetch_bytes)

    def delete_durable(self, subscription: Subscription, client_id: str | None) -> list[Command]:
        """Return the UNSUBSCRIBE that names the durable subscription; the connection's client id counts."""
        del client_id
        name = subscription.durable_name or ""
        headers = {
            "destination": self.destination(subscription.destination),
            "id": name,
            "durable-subscription-name": name,
        }
        return [("UNSUBSCRIBE", headers)]

    def recovery(self, subscription: Subscription) -> Recovery:
        """Resubscribe, except where that would drop what a plain topic consumer holds."""
        if subscription.destination.kind is DestinationKind.TOPIC and subscription.durable_name is None:
            return Recovery.LOCAL
        return Recovery.RESUBSCRIBE

    def acknowledgement(self, frame: Frame) -> bytes | None:
        """Return the last `ack` header: one that a producer forged stands before the broker's own."""
        return frame.last(ACK)

    def destination(self, destination: Destination) -> str:
        """Return the `destination` header: a plain name; the type goes in a header of its own."""
        return destination.name

    def reply_to(self, destination: Destination) -> str:
        """Return the form Java's clients read."""
        return str(destination)

    def special_headers(self, headers: Headers, outgoing: Outgoing) -> None:
        """Add the routing type, without which the broker takes every destination for a topic."""
        super().special_headers(headers, outgoing)
        headers.append(("destination-type", _ROUTING[outgoing.destination.kind]))
        if outgoing.deduplication_id is not None:
            headers.append(("_AMQ_DUPL_ID", outgoing.deduplication_id))

    def encode_body(self, headers: Headers, message: JmsMessage) -> bytes:
        """Send bytes with a content-length and text without: that is how the broker tells them apart."""
        if message.body_kind is BYTES:
            body = bytes_of(message)
            headers.append(("content-length", str(len(body))))
            if not body:
                headers.append((BODY_KIND, BYTES))
            return body
        body = text_of(message).encode()
        if not body or 0 in body:
            headers.append((BODY_KIND, message.body_kind))
        if 0 in body:
            headers.append(("content-length", str(len(body))))
        return body

    def check_headers(self, headers: Headers, body: bytes) -> None:
        """Refuse what the broker would answer with the end of the connection, and often without an ERROR.

        It keeps text in two bytes a character. All headers must fit into one record: of the journal's buffer,
        or, where the body is large enough for a file of its own, of the size that makes it so.
        """
        if sum(len(name) + len(value) for name, value in headers) < _FEW_CHARACTERS:
            return
        size = sum(_stored(name) + _stored(value) + _OVERHEAD for name, value in headers)
        is_bytes = any(name == "content-length" for name, _ in headers)
        large = (len(body) if is_bytes else _stored(body.decode())) >= _LARGE_BODY
        limit = _LARGE_BODY_HEADERS if large else _HEADERS
        if size > limit:
            setting = "stompMinLargeMessageSize of its acceptor" if large else "its journal-buffer-size"
            raise ConfigurationError(
                f"the properties take {size} bytes together; Artemis takes {limit} "
                f"{'beside a body of 100 KiB or more' if large else 'in a message'}, two for each character, "
                f"as {setting} allows: put them into the body"
            )

    def property_name(self, header: str) -> str:
        """Return the name of a property; JMSXGroupID gets its own back."""
        return "JMSXGroupID" if header == "_AMQ_GROUP_ID" else super().property_name(header)

    def decode_body(self, frame: Frame, headers: Mapping[str, str]) -> tuple[BodyKind, Body]:
        """Tell bytes from text by where the broker puts content-length: early for bytes, last for text.

        Raises:
            PoisonMessageError: The text isn't UTF-8, or the broker may have left out the body.
        """
        kind = marked_kind(headers)
        if kind is EMPTY:
            return EMPTY, None
        if kind is TEXT:
            return TEXT, decode_text(frame.body)
        if kind is BYTES:
            return BYTES, frame.body
        at = frame.head.find(b"\ncontent-length:")
        if at < 0:
            return (TEXT, decode_text(frame.body)) if frame.body else no_body(headers, self.product)
        if frame.head.find(b"\n", at + 1) < 0:
            if frame.body.startswith(b"\0"):
                raise PoisonMessageError(
                    "it begins with NUL, as what Artemis makes over STOMP of a Java map or stream message. "
                    "Artemis leaves out its body; send text or bytes"
                )
            return TEXT, decode_text(frame.body)
        return BYTES, frame.body

    def lasting(self, identifier: str) -> str:
        """Return the half of the id that doesn't change when the message is delivered to another consumer."""
        return identifier.rpartition(",")[2]

    def origin(self, headers: Mapping[str, str], subscription: Subscription) -> Destination:
        """Return where the message was sent to: the header repeats what the producer wrote."""
        name = headers.get("destination", "")
        asked = subscription.destination
        kind = _KINDS.get(headers.get("destination-type", ""), asked.kind)
        if not name:
            return asked
        # Names that begin like `/queue/` are literal, unless a prefix of the acceptor says otherwise.
        return Destination(kind, name if name == asked.name else Destination.from_header(name).name)


def _stored(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass"))


def _window(prefetch: int | None) -> int:
    if prefetch is None:
        return DEFAULT_WINDOW
    return 0 if prefetch <= 1 else prefetch * BYTES_PER_MESSAGE


def _selector(portable: str) -> str:
    """Return the selector in the broker's words; numbers compare only with the prefix.

    Raises:
        CapabilityError: The selector asks for what matches nothing there.
    """
    faults: list[str] = []

    def translate(match: re.Match[str]) -> str:
        name = match[0]
        if not name.startswith("JMS"):
            return name
        if name in {"JMSDeliveryMode", "JMSMessageID", "JMSRedelivered", "JMSXDeliveryCount"}:
            faults.append(
                f"a selector on {name} matches nothing on artemis over STOMP: let the sender set a property "
                "of its own, and select by that"
            )
        return _SELECTOR_NAMES.get(name, name)

    translated = _OUTSIDE_QUOTES.sub(translate, portable)
    if faults:
        raise CapabilityError(faults)
    return f"convert_string_expressions:{translated}"
