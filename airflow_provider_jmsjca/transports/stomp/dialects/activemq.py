"""ActiveMQ Classic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.core.message import Body, BodyKind, JmsMessage
from airflow_provider_jmsjca.errors import ConfigurationError, PoisonMessageError
from airflow_provider_jmsjca.transports.base import Capabilities, Subscription
from airflow_provider_jmsjca.transports.stomp.dialects.dialect import (
    BODY_KIND,
    RESERVED,
    Dialect,
    Headers,
    Recovery,
    UnitKind,
    bytes_of,
    marked_kind,
    text_of,
)
from airflow_provider_jmsjca.transports.stomp.frames import Frame, escape
from airflow_provider_jmsjca.transports.stomp.text import decode_modified, encode_modified

DEFAULT_PREFETCH: Final = 100
LONGEST_HEADER_LINE: Final = 10 * 1024
MOST_HEADERS: Final = 1000


class ActiveMqDialect(Dialect):
    """ActiveMQ Classic: real transactions, selectors, browsing; types and empty bodies get lost.

    A Java map, stream or object message arrives as an empty message and can't be told from one.
    Text travels in modified UTF-8, which is how the broker's Java clients read and write it.
    """

    product: ClassVar[str] = "activemq"
    capabilities: ClassVar[Capabilities] = Capabilities(
        atomic_commit=True,
        redelivered_flag=True,
        stable_message_id=True,
        selector=True,
        browse=True,
        durable_subscription=True,
        delayed_delivery=True,
        message_groups=True,
        max_property_characters=3000,
    )
    unit_kind: ClassVar[UnitKind] = UnitKind.TRANSACTION
    bulk_transactions: ClassVar[bool] = True
    hidden: ClassVar[frozenset[str]] = RESERVED | {"amq-msg-type", "browser"}

    def check(self, subscription: Subscription, client_id: str | None) -> None:
        """Refuse a durable subscription that would silently be none."""
        if subscription.durable_name is None:
            return
        if subscription.destination.kind is not DestinationKind.TOPIC:
            raise ConfigurationError(
                f"the durable subscription {subscription.durable_name!r} needs a topic, "
                f"not {subscription.destination}"
            )
        if not client_id:
            raise ConfigurationError(
                f"the durable subscription {subscription.durable_name!r} needs a client id: "
                "ActiveMQ would make it non-durable without a word"
            )

    def subscribe(self, subscription: Subscription, client_id: str | None) -> dict[str, str]:
        """Return the headers of SUBSCRIBE."""
        del client_id
        prefetch = DEFAULT_PREFETCH if subscription.prefetch is None else subscription.prefetch
        headers = {
            "destination": self.destination(subscription.destination),
            "activemq.prefetchSize": str(max(1, prefetch)),  # with 0 nothing ever comes
        }
        if subscription.selector:
            headers["selector"] = subscription.selector
        if subscription.durable_name is not None:
            headers["activemq.subscriptionName"] = subscription.durable_name
        return headers

    def delete_durable(self, name: str, destination: Destination, client_id: str | None) -> dict[str, str]:
        """Return the headers of the UNSUBSCRIBE that deletes an idle durable subscription."""
        if not client_id:
            raise ConfigurationError(f"deleting the durable subscription {name!r} needs its client id")
        return {"destination": self.destination(destination), "id": name, "activemq.subscriptionName": name}

    def recovery(self, subscription: Subscription) -> Recovery:
        """Resubscribe, except where that would drop what a plain topic consumer holds."""
        if subscription.destination.kind is DestinationKind.TOPIC and subscription.durable_name is None:
            return Recovery.LOCAL
        return Recovery.RESUBSCRIBE

    def destination(self, destination: Destination) -> str:
        """Return the `destination` header."""
        return f"/{destination.kind}/{destination.name}"

    def encode_body(self, headers: Headers, message: JmsMessage) -> bytes:
        """Name the kind, which content-length alone would make bytes."""
        if message.body_kind is BodyKind.BYTES:
            body, kind = bytes_of(message), "bytes"
        else:
            body, kind = encode_modified(text_of(message)), "text"
            if not body:
                headers.append((BODY_KIND, message.body_kind))
        headers.append(("amq-msg-type", kind))
        headers.append(("content-length", str(len(body))))
        return body

    def check_headers(self, headers: Headers) -> None:
        """Refuse what the broker would answer with an ERROR and the end of the connection."""
        for name, value in headers:
            # One character takes up to four bytes, or two where it is escaped.
            if len(name) + len(value) > LONGEST_HEADER_LINE // 4:
                size = len(escape(name).encode("utf-8", "replace")) + len(escape(value).encode("utf-8", "replace"))
                if size + 1 >= LONGEST_HEADER_LINE:
                    raise ConfigurationError(
                        f"the property {name!r} takes {size} bytes; ActiveMQ refuses more than "
                        f"{LONGEST_HEADER_LINE} for a name and its value"
                    )
        if len(headers) > MOST_HEADERS - 10:
            raise ConfigurationError(
                f"the message has {len(headers)} headers and properties; ActiveMQ refuses more than {MOST_HEADERS}"
            )

    def decode_headers(self, frame: Frame) -> dict[str, str]:
        """Return the decoded headers, which a Java producer may have filled with modified UTF-8."""
        try:
            return frame.headers()
        except PoisonMessageError:
            try:
                head = decode_modified(frame.head).encode()
            except UnicodeDecodeError:
                raise
            return Frame(frame.command, head, b"").headers()

    def decode_body(self, frame: Frame, headers: Mapping[str, str]) -> tuple[BodyKind, Body]:
        """Take what has a content-length for bytes, a body without for text, and nothing for empty."""
        if "content-length" in headers:
            return BodyKind.BYTES, frame.body
        if frame.body:
            try:
                return BodyKind.TEXT, decode_modified(frame.body)
            except UnicodeDecodeError as error:
                raise PoisonMessageError(f"the text is no Unicode: byte {error.start} is no part of it") from error
        if marked_kind(headers) is BodyKind.TEXT:
            return BodyKind.TEXT, ""
        return BodyKind.EMPTY, None


