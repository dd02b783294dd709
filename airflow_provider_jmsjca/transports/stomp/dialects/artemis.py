"""The dialect of Apache Artemis."""

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
# Limits in bytes, measured with the broker's default configuration. The record that the broker stores is a
# few bytes longer than the headers.
_HEADERS: Final = 500_800
_LARGE_BODY: Final = 102_200
_LARGE_BODY_HEADERS: Final = 101_700
_OVERHEAD: Final = 10
_FEW_CHARACTERS: Final = 20_000


class ArtemisDialect(Dialect):
    """Artemis, used without transactions and NACK.

    An ACK of Artemis ignores the transaction, and a NACK destroys the message.

    The broker delivers a Java map or stream message as a few bytes that aren't its body. It delivers an
    object message without its body, like a Java message without a body, and empty or null text. All of these
    count as undecodable unless this package sent them.

    Text with NUL is sent as bytes with a marker header. This package receives it as text, but a Java client
    receives a bytes message.
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
        """Also refuse selectors on names that never match on this broker."""
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
        """Return the maximum size of unsettled messages in bytes."""
        return max(_window(subscription.prefetch), subscription.prefetch_bytes)

    def delete_durable(self, subscription: Subscription, client_id: str | None) -> list[Command]:
        """Return the UNSUBSCRIBE for the durable subscription of the connection's client id."""
        del client_id
        name = subscription.durable_name or ""
        headers = {
            "destination": self.destination(subscription.destination),
            "id": name,
            "durable-subscription-name": name,
        }
        return [("UNSUBSCRIBE", headers)]

    def recovery(self, subscription: Subscription) -> Recovery:
        """Resubscribe, unless that would drop the messages of a non-durable topic consumer."""
        if subscription.destination.kind is DestinationKind.TOPIC and subscription.durable_name is None:
            return Recovery.LOCAL
        return Recovery.RESUBSCRIBE

    def acknowledgement(self, frame: Frame) -> bytes | None:
        """Return the last `ack` header, which is the broker's; a header forged by a producer precedes it."""
        return frame.last(ACK)

    def destination(self, destination: Destination) -> str:
        """Return the `destination` header: the plain name, because the type has a separate header."""
        return destination.name

    def reply_to(self, destination: Destination) -> str:
        """Return the `reply-to` header in the form that Java clients read."""
        return str(destination)

    def special_headers(self, headers: Headers, outgoing: Outgoing) -> None:
        """Add the routing type; without it the broker treats every destination as a topic."""
        super().special_headers(headers, outgoing)
        headers.append(("destination-type", _ROUTING[outgoing.destination.kind]))
        if outgoing.deduplication_id is not None:
            headers.append(("_AMQ_DUPL_ID", outgoing.deduplication_id))

    def encode_body(self, headers: Headers, message: JmsMessage) -> bytes:
        """Return the encoded body; add a content-length for bytes, but not for text.

        The broker treats a body with a content-length as bytes. Text that contains NUL needs a
        content-length, too; the marker header of this package then tells that the body is text.
        """
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
        """Refuse headers for which the broker would end the connection, often without an ERROR.

        The broker stores each character in two bytes, and all headers of a message in one record. The size of
        the journal buffer limits the record. If the body is so large that the broker stores it in a separate
        file, the limit of the record is the minimum size of such a body.
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
        """Return the property name of a header; the broker sends `JMSXGroupID` under another name."""
        return "JMSXGroupID" if header == "_AMQ_GROUP_ID" else super().property_name(header)

    def decode_body(self, frame: Frame, headers: Mapping[str, str]) -> tuple[BodyKind, Body]:
        """Decode the body; determine its kind by the marker header, else by content-length.

        This package sends the marker header (`BODY_KIND`). Without it, a body is text if the header
        content-length is missing or comes last. The broker puts content-length last only for text.

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
                    "it begins with NUL, like a Java map or stream message that Artemis sends over STOMP. "
                    "Artemis leaves out its body; send text or bytes"
                )
            return TEXT, decode_text(frame.body)
        return BYTES, frame.body

    def lasting(self, identifier: str) -> str:
        """Return the part of the id after the last comma, which is the same for every consumer."""
        return identifier.rpartition(",")[2]

    def origin(self, headers: Mapping[str, str], subscription: Subscription) -> Destination:
        """Return the original destination: the broker passes the producer's header on unchanged."""
        name = headers.get("destination", "")
        asked = subscription.destination
        kind = _KINDS.get(headers.get("destination-type", ""), asked.kind)
        if not name:
            return asked
        # If the subscription has exactly this name, a beginning such as `/queue/` is part of the name.
        return Destination(kind, name if name == asked.name else Destination.from_header(name).name)


def _stored(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass"))


def _window(prefetch: int | None) -> int:
    if prefetch is None:
        return DEFAULT_WINDOW
    return 0 if prefetch <= 1 else prefetch * BYTES_PER_MESSAGE


def _selector(portable: str) -> str:
    """Return the selector in the broker's syntax, with a prefix for comparing text properties with numbers.

    Raises:
        CapabilityError: The selector uses a name that never matches on this broker.
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
