"""The dialect of ActiveMQ Classic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.core.message import Body, BodyKind, JmsMessage, modified_utf8
from airflow_provider_jmsjca.core.name_syntax import NameSyntax
from airflow_provider_jmsjca.errors import CapabilityError, ConfigurationError
from airflow_provider_jmsjca.transports.base import BrokerInfo, Capabilities, Subscription
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
    marked_kind,
    no_body,
)
from airflow_provider_jmsjca.transports.stomp.dialects.java_bodies import MAPS_AS_XML, TRANSFORMATION
from airflow_provider_jmsjca.transports.stomp.dialects.settlement import (
    AdministrationKind,
    Cumulative,
    Recovery,
    UnitKind,
)
from airflow_provider_jmsjca.transports.stomp.wire.frames import MESSAGE_ID, Frame, escape

LONGEST_PROPERTY: Final = 10_000
LONGEST_HEADER_LINE: Final = 10 * 1024
MOST_HEADERS: Final = 1000
# Headers of a delay. They are not read as properties, because a copy of the message with them would be
# delayed again, or would override its own delay.
_SCHEDULING: Final = {
    "scheduledJobId",
    "AMQ_SCHEDULED_CRON",
    "AMQ_SCHEDULED_DELAY",
    "AMQ_SCHEDULED_PERIOD",
    "AMQ_SCHEDULED_REPEAT",
}
_SEVERAL: Final = frozenset("*>,")
_DROPPED: Final = "".join(map(chr, range(33)))  # the characters that Java's `String.trim` removes


class ActiveMqDialect(Dialect):
    """ActiveMQ Classic: transactions, selectors and browsing; property types and empty bodies are lost.

    The broker delivers Java map, stream and object messages without their body. They can't be distinguished
    from a Java message without a body, or from empty or null text. All of these count as undecodable unless
    this package sent them. Otherwise the bodies of map, stream and object messages would be lost unnoticed.
    An empty bytes message is recognized by its content-length.

    A destination with the option `transformation` delivers maps with their body. The option has two
    drawbacks, so it isn't the default. An object of a class that the broker doesn't trust then ends the
    connection (see `untransformed`). Text that looks like a converted map can't be distinguished from a map.
    """

    product: ClassVar[str] = "activemq"
    administration: ClassVar[AdministrationKind] = AdministrationKind.STATISTICS_PLUGIN
    capabilities: ClassVar[Capabilities] = Capabilities(
        atomic_commit=True,
        redelivered_flag=True,
        stable_message_id=True,
        selector=True,
        browse=True,
        durable_subscription=True,
        delayed_delivery=True,
        message_groups=True,
        unit_frees_prefetch=True,
        cumulative_acknowledgement=True,
        max_property_characters=LONGEST_PROPERTY,
    )
    names: ClassVar[NameSyntax] = NameSyntax(
        options="?", separator=",", any_word="*", any_words=">", virtual_topics=True
    )
    unit_kind: ClassVar[UnitKind] = UnitKind.TRANSACTION
    bulk_transactions: ClassVar[bool] = True
    errors_name_frames: ClassVar[bool] = True
    cumulative: ClassVar[Cumulative] = Cumulative.SUBSCRIPTION
    usual_prefetch: ClassVar[int] = 500
    # Text of Java producers has no content-length, and its NULs are unescaped. The broker terminates a
    # frame with NUL and a line feed; text that contains both breaks the connection.
    frame_end: ClassVar[bytes] = b"\0\n"
    forgotten: ClassVar[str] = "Unexpected ACK received for message-id"
    temporary: ClassVar[tuple[str, ...]] = ("/remote-temp-queue/", "/remote-temp-topic/")
    ways_out: ClassVar[Mapping[str, str]] = {
        "maximum data length": (
            "the body is larger than wireFormat.maxDataLength of the broker's STOMP connector, 104857600 "
            "bytes by default; raise it in its URI"
        ),
        "maximum frame size": (
            "the message is larger than wireFormat.maxFrameSize of the broker's STOMP connector: raise it "
            "there"
        ),
        "Java heap space": "the broker's memory is too small for it: raise -Xmx of the broker",
    }
    hidden: ClassVar[frozenset[str]] = RESERVED | {"amq-msg-type", "browser"} | _SCHEDULING
    unread: ClassVar[frozenset[str]] = Dialect.unread | _SCHEDULING
    taken: ClassVar[frozenset[str]] = RESERVED | {"amq-msg-type", "browser", TRANSFORMATION}
    concealed: ClassVar[frozenset[str]] = frozenset({"JMSXGroupID", "JMSXGroupSeq"})
    consumer_options: ClassVar[frozenset[str]] = frozenset(
        {
            "activemq.dispatchAsync",
            "activemq.exclusive",
            "activemq.maximumPendingMessageLimit",
            "activemq.noLocal",
            "activemq.priority",
            "activemq.retroactive",
            TRANSFORMATION,
        }
    )
    reading_options: ClassVar[frozenset[str]] = frozenset({BODILESS})
    choices: ClassVar[Mapping[str, frozenset[str]]] = {
        BODILESS: BODILESS_KINDS,
        TRANSFORMATION: frozenset({MAPS_AS_XML}),
    }
    no_local: ClassVar[frozenset[str]] = frozenset({"activemq.noLocal"})

    def process(self, session: str) -> str | None:
        """Return the session id without its last part, which differs between connections."""
        return session.rpartition(":")[0] if session.startswith("ID:") else None

    def check(self, subscription: Subscription, broker: BrokerInfo, client_id: str | None) -> None:
        """Also refuse a list of topics: the broker would deliver only the messages of the first topic."""
        super().check(subscription, broker, client_id)
        destination = subscription.destination
        if destination.kind is DestinationKind.TOPIC and "," in _without_options(destination):
            raise CapabilityError(
                f"{destination} lists several topics, of which {self.product} delivers only the first over "
                "STOMP: use a wildcard such as topic://orders.>, or one consumer for each topic"
            )

    def prefetch(self, subscription: Subscription) -> int:
        """Return 1 if the caller has several consumers of the destination.

        The broker hides message groups set by other clients, so only a prefetch of 1 keeps a group in order.
        """
        return 1 if subscription.one_of_several else super().prefetch(subscription)

    def subscribe(self, subscription: Subscription, client_id: str | None) -> dict[str, str]:
        """Return the headers of SUBSCRIBE."""
        del client_id
        headers = {
            "destination": self.destination(subscription.destination),
            "activemq.prefetchSize": str(max(1, self.prefetch(subscription))),  # 0: no deliveries
        }
        if subscription.selector and (selector := self.portable(subscription.selector)):
            headers["selector"] = selector
        if subscription.durable_name is not None:
            headers["activemq.subscriptionName"] = subscription.durable_name
        return headers

    def after_subscribe(self, subscription: Subscription, identifier: str) -> list[Command]:
        """Make the broker deliver the backlog of the queues of a wildcard or a composite name.

        For a SUBSCRIBE with a receipt the broker opens the prefetch window after the RECEIPT. It then
        dispatches only the queue of exactly this name. Other matching queues dispatch nothing until the next
        message arrives. A second consumer that subscribes and unsubscribes makes all of them dispatch; with
        its prefetch of 0 it receives no messages.
        """
        destination = subscription.destination
        names_one = _SEVERAL.isdisjoint(_without_options(destination))
        if names_one or destination.kind is DestinationKind.TOPIC:
            return []
        headers = {
            "id": identifier,
            "destination": self.destination(destination),
            "ack": "client",
            "activemq.prefetchSize": "0",
        }
        return [("SUBSCRIBE", headers), ("UNSUBSCRIBE", {"id": identifier})]

    def delete_durable(self, subscription: Subscription, client_id: str | None) -> list[Command]:
        """Return the UNSUBSCRIBE for the durable subscription of the connection's client id."""
        del client_id
        name = subscription.durable_name or ""
        headers = {
            "destination": self.destination(subscription.destination),
            "id": name,
            "activemq.subscriptionName": name,
        }
        return [("UNSUBSCRIBE", headers)]

    def recovery(self, subscription: Subscription) -> Recovery:
        """Resubscribe, unless that would drop the messages of a non-durable topic consumer."""
        if subscription.destination.kind is DestinationKind.TOPIC and subscription.durable_name is None:
            return Recovery.LOCAL
        return Recovery.RESUBSCRIBE

    def ends_browsing(self, frame: Frame) -> bool:
        """Also check the message id: a producer can set a header `browser`, but not the id."""
        return super().ends_browsing(frame) and frame.first(MESSAGE_ID) == b"0"

    def destination(self, destination: Destination) -> str:
        """Return the `destination` header.

        Raises:
            ConfigurationError: The broker would read the name as a different one.
        """
        if destination.name.startswith(self.temporary):
            return destination.name
        if destination.name != destination.name.strip(_DROPPED):
            raise ConfigurationError(
                f"destination {str(destination)!r}: ActiveMQ drops blanks at the ends of a name; expected a "
                "name without them"
            )
        if not _without_options(destination).replace(",", "").strip(_DROPPED):
            raise ConfigurationError(
                f"destination {destination}: for ActiveMQ a name is missing before the options or "
                "between the commas; expected a name"
            )
        return f"/{destination.kind}/{destination.name}"

    def encode_body(self, headers: Headers, message: JmsMessage) -> bytes:
        """Return the encoded body; add a content-length for bytes, but not for text.

        The broker treats a body with a content-length as bytes. Text that contains NUL needs a
        content-length, too; the header `amq-msg-type` then marks the body as text. The broker passes both
        headers on to the consumer.
        """
        if message.body_kind is BYTES:
            body = bytes_of(message)
            headers.append(("content-length", str(len(body))))
            return body
        body = message.body.encode() if isinstance(message.body, str) else b""
        if not body:
            headers.append((BODY_KIND, message.body_kind))
        if 0 in body:
            headers.append(("amq-msg-type", "text"))
            headers.append(("content-length", str(len(body))))
        return body

    def check_headers(self, headers: Headers, body: bytes) -> None:
        """Refuse headers that the broker would reject with an ERROR, ending the connection."""
        del body
        for name, value in headers:
            # The exact length is computed only if it may be too large: a character takes up to four bytes.
            if len(name) + len(value) > LONGEST_HEADER_LINE // 4:
                size = len(escape(name).encode("utf-8", "replace")) + len(
                    escape(value).encode("utf-8", "replace")
                )
                if size + 1 >= LONGEST_HEADER_LINE:
                    raise ConfigurationError(
                        f"the property {name!r} takes {size} bytes on the wire; ActiveMQ refuses more than "
                        f"{LONGEST_HEADER_LINE} for a name and its value. No setting changes that: spread "
                        "it over several properties, or put it into the body"
                    )
        if len(headers) > MOST_HEADERS - 10:
            raise ConfigurationError(
                f"the message has {len(headers)} headers and properties; "
                f"ActiveMQ refuses more than {MOST_HEADERS}, which no setting changes: put them into the body"
            )

    def decode_body(self, frame: Frame, headers: Mapping[str, str]) -> tuple[BodyKind, Body]:
        """Decode the body; determine its kind by the marker header, else by other headers.

        This package sends the marker header (`BODY_KIND`). Without it, a body with a content-length is bytes,
        unless `amq-msg-type` marks it as text.

        Raises:
            PoisonMessageError: The text isn't Unicode. Or the body is missing, and the marker doesn't tell
                that the message was sent without a body.
        """
        body, kind = frame.body, marked_kind(headers) if BODY_KIND in headers else None
        if kind is not TEXT and headers.get("amq-msg-type") != "text":
            if kind is EMPTY and not body:
                return EMPTY, None
            if "content-length" in headers or (kind is BYTES and body):
                return BYTES, body
            if not body:
                return no_body(headers, self.product)
        try:
            return TEXT, body.decode()
        except UnicodeDecodeError:
            return TEXT, modified_utf8.decode(body)


def _without_options(destination: Destination) -> str:
    """Return the name without the options that the broker reads after a question mark."""
    return destination.name.partition("?")[0]
