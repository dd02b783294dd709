"""The dialect of RabbitMQ with its STOMP plugin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from time import time
from typing import ClassVar, Final
from urllib.parse import unquote

from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.core.message import Body, BodyKind, JmsMessage, PropertyValue
from airflow_provider_jmsjca.core.name_syntax import NameSyntax
from airflow_provider_jmsjca.errors import ConfigurationError, ConnectionLostError, PoisonMessageError
from airflow_provider_jmsjca.transports.base import Capabilities, Outgoing, Subscription
from airflow_provider_jmsjca.transports.stomp.dialects.dialect import (
    BODY_KIND,
    BYTES,
    EMPTY,
    NO_PROPERTIES,
    RESERVED,
    TEXT,
    Command,
    Dialect,
    Headers,
    bytes_of,
    decode_text,
    destination_of,
    marked_kind,
    number,
    text_of,
)
from airflow_provider_jmsjca.transports.stomp.dialects.java_bodies import is_of_rabbitmq_client
from airflow_provider_jmsjca.transports.stomp.dialects.settlement import (
    AdministrationKind,
    Cumulative,
    Recovery,
)
from airflow_provider_jmsjca.transports.stomp.wire.frames import ACK, Frame, escape

_SWALLOWED: Final = "There is no current subscription with tag"
_MOST_DIGITS: Final = 20
_LEAST_SESSION: Final = 16
EXPIRATION: Final = "JMS_JMSJCA_Expiration"
_CONTENT_TYPE: Final = "content-type"
_ASCII: Final = "text/plain"
_TEXT: Final = "text/plain;charset=utf-8"
_OURS: Final = frozenset({_ASCII, _TEXT})
_TEXTUAL: Final = ("text/", "application/json", "application/xml")
_HIDDEN: Final = RESERVED | {"amqp-message-id", "expiration", "x-delivery-count", EXPIRATION}
# Names that properties can't have, because the broker acts on such headers. Those with x- change queue
# declaration, delivery counting or dead-letter routing. For CC and BCC, the broker routes copies.
_TAKEN: Final = _HIDDEN | {
    "BCC",
    "CC",
    "content-encoding",
    "app-id",
    "user-id",
    "durable",
    "auto-delete",
    "exclusive",
    "x-death",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-expires",
    "x-first-death-exchange",
    "x-first-death-queue",
    "x-first-death-reason",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-priority",
    "x-message-ttl",
    "x-overflow",
    "x-queue-name",
    "x-queue-type",
}

# Options that declare a queue. SEND and SUBSCRIBE need the same ones, because each declares the queue, and
# the broker refuses a second declaration that differs.
_QUEUE_ARGUMENTS: Final = frozenset(
    {
        "x-dead-letter-exchange",
        "x-dead-letter-routing-key",
        "x-expires",
        "x-max-length",
        "x-max-length-bytes",
        "x-max-priority",
        "x-message-ttl",
        "x-queue-type",
    }
)
_FULL: Final = (
    "a full queue drops its oldest messages, unless a policy of the broker sets overflow to reject-publish"
)
_SLASH: Final = "%2F"


@lru_cache(maxsize=1024)
def _decoded(text: str) -> Destination | None:
    """Return the destination in a header of the plugin. Cached, because there are few distinct ones."""
    found = destination_of(text)
    try:
        return found and replace(found, name=unquote(found.name, errors="strict"))
    except (
        UnicodeDecodeError
    ):  # the decoded bytes are not UTF-8, as names in AMQP are: keep the name as it is
        return found


class RabbitMqDialect(Dialect):
    """RabbitMQ: no selectors and no usable transactions; sends are confirmed one by one.

    Queues are always addressed as `/queue/name`, which creates them. With any other form, the broker would
    confirm a SEND to a missing queue and drop the message.

    When reading a name, the plugin decodes only `%2F`, as a slash. When writing one, it percent-encodes
    slashes, percent signs and non-ASCII characters. It passes `reply-to` on unchanged.

    With a thousand pending receipts, each character of a receipt id costs about one percent of throughput.
    With four characters, a forged receipt matches a pending one with a probability below one in ten thousand.
    A forged receipt that doesn't match ends the connection.
    """

    product: ClassVar[str] = "rabbitmq"
    administration: ClassVar[AdministrationKind] = AdministrationKind.HTTP_API
    capabilities: ClassVar[Capabilities] = Capabilities(
        redelivered_flag=True, durable_subscription=True, own_sessions=True
    )
    names: ClassVar[NameSyntax] = NameSyntax(
        any_word="*", any_words="#", wildcards_in=frozenset({DestinationKind.TOPIC})
    )
    highest_priority: ClassVar[int] = 255
    temporary: ClassVar[tuple[str, ...]] = ("/reply-queue/",)
    ways_out: ClassVar[Mapping[str, str]] = {
        "larger than configured max size": (
            "raise max_message_size in the broker's rabbitmq.conf, 134217728 bytes unless it is set there"
        )
    }
    cancelled: ClassVar[str] = "Server cancelled subscription"
    cumulative: ClassVar[Cumulative] = Cumulative.CONNECTION
    returns_through_another: ClassVar[bool] = True
    writes_singly: ClassVar[bool] = True
    secret_length: ClassVar[int] = 6
    receipt_length: ClassVar[int] = 4
    usual_prefetch: ClassVar[int] = 1000
    hidden: ClassVar[frozenset[str]] = _HIDDEN
    unread: ClassVar[frozenset[str]] = Dialect.unread | {"message-id"}
    decisive: ClassVar[Mapping[str, frozenset[str]]] = {_CONTENT_TYPE: _OURS}
    identifier: ClassVar[str] = "amqp-message-id"
    expires: ClassVar[str] = EXPIRATION
    taken: ClassVar[frozenset[str]] = _TAKEN
    consumer_options: ClassVar[frozenset[str]] = _QUEUE_ARGUMENTS
    producer_options: ClassVar[frozenset[str]] = _QUEUE_ARGUMENTS
    choices: ClassVar[Mapping[str, frozenset[str]]] = {"x-queue-type": frozenset({"classic", "quorum"})}
    reasons: ClassVar[Mapping[str, str]] = {
        "x-overflow": f"the STOMP plugin ignores it, and {_FULL}",
        "x-queue-type": (
            "a stream delivers only messages sent while the consumer is subscribed, and an "
            "acknowledgement removes "
            "nothing"
        ),
    }
    warnings: ClassVar[Mapping[str, str]] = {"x-max-length": _FULL, "x-max-length-bytes": _FULL}

    def proof(self, session: str) -> str | None:
        """Return the session id as it stands in every `ack` header; `None` for a guessable, short id.

        Ids of durable subscriptions are no proof, because they are names that a producer may know.
        """
        return f"@@{session}@@" if len(session) >= _LEAST_SESSION else None

    def subscribe(self, subscription: Subscription, client_id: str | None) -> dict[str, str]:
        """Return the headers of SUBSCRIBE."""
        headers = {
            "destination": self.destination(subscription.destination),
            "prefetch-count": str(max(1, self.prefetch(subscription))),  # 0 means unlimited
        }
        if subscription.durable_name is not None:
            headers |= _durable(subscription.durable_name, client_id)
        return headers

    def delete_durable(self, subscription: Subscription, client_id: str | None) -> list[Command]:
        """Return SUBSCRIBE and UNSUBSCRIBE: the broker deletes only an active subscription."""
        headers = self.subscribe(replace(subscription, prefetch=1), client_id)
        return [("SUBSCRIBE", headers | {"ack": "client-individual"}), ("UNSUBSCRIBE", headers)]

    def recovery(self, subscription: Subscription) -> Recovery:
        """Return `HAND_BACK`, which keeps the order, unless UNSUBSCRIBE would delete the queue."""
        if subscription.destination.kind is DestinationKind.TOPIC and subscription.durable_name is None:
            return Recovery.NEGATIVE_ACKNOWLEDGE
        return Recovery.HAND_BACK

    def orphan(self, token: bytes, keeper: str) -> bytes:
        """Return the id for a NACK through another, active subscription.

        The plugin looks up the subscription that the id names. Then it uses only the number at the end of the
        id, which counts deliveries of the whole connection. A NACK is necessary, because UNSUBSCRIBE doesn't
        requeue messages. A NACK before UNSUBSCRIBE would redeliver the message to the same subscription.
        """
        return b"T_%b@@%b" % (escape(keeper).encode(), token.partition(b"@@")[2])

    def undelivered_token(self, error: str, last: Frame | None, since: int) -> bytes | None:
        """Return the acknowledgement id of a message that was in transit when its subscription ended.

        The plugin reports such a delivery with an ERROR and leaves it unacknowledged. Without a NACK, no
        consumer would receive the message before the end of the connection. Deliveries are numbered
        consecutively, so the number follows from the last received message.

        Raises:
            ConnectionLostError: The last received message has no number.
        """
        if _SWALLOWED not in error:
            return None
        before = (None if last is None else last.first(ACK)) or b"@@0"
        number_before = before.rpartition(b"@@")[2]
        if not number_before.isdigit() or len(number_before) > _MOST_DIGITS:
            raise ConnectionLostError(
                "a message that the broker sent to an ended consumer can't be returned: the ack header "
                f"before it, {before[:80]!r}, doesn't end with a number"
            )
        return b"T_gone@@session@@%d" % (int(number_before) + since + 1)

    def destination(self, destination: Destination) -> str:
        """Return the `destination` header; slashes in a name are escaped for the plugin.

        Raises:
            ConfigurationError: The name contains `%2F`, which the plugin would read as a slash.
        """
        name = destination.name
        if name.startswith(self.temporary):
            return name
        if _SLASH in name:
            raise ConfigurationError(
                f"destination {destination}: RabbitMQ's STOMP plugin reads {_SLASH} in a name as a slash, so "
                f"it can't name this {destination.kind}; expected a name without {_SLASH}"
            )
        return f"/{destination.kind}/{name.replace('/', _SLASH)}"

    def destination_from(self, text: str) -> Destination | None:
        """Return the destination that the plugin writes into a MESSAGE."""
        return _decoded(text)

    def reply_to(self, destination: Destination) -> str:
        """Return the `reply-to` header.

        The plugin can't address a queue with `%2F` in its name, so the header then has the plain AMQP name.
        """
        name = destination.name
        if _SLASH in name and Destination.from_header(name) == destination:
            return name
        return self.destination(destination)

    def reply_to_from(self, text: str) -> Destination:
        """Return the destination of a `reply-to` header, which the plugin doesn't percent-encode.

        Raises:
            PoisonMessageError: The header names no destination.
        """
        found = destination_of(text)
        return super().reply_to_from(text) if found is None else _unescaped(found)

    def identity(self, given: str | None, new_id: Callable[[], str]) -> bytes:
        """Return header lines with a message id of this package and the time.

        The ids of the broker are no use, because they change with every delivery.
        """
        escaped = (given or new_id()).replace(":", r"\c")
        return b"amqp-message-id:%b\ntimestamp:%d\n" % (escaped.encode(), time() * 1000)

    def special_headers(self, headers: Headers, outgoing: Outgoing) -> None:
        """Add the expiration as time to live, for the broker, and as an absolute time, for the receiver."""
        expiration = outgoing.message.expiration
        if expiration:
            headers.append(("expiration", str(max(0, expiration - round(time() * 1000)))))
            headers.append((EXPIRATION, str(expiration)))

    def encode_body(self, headers: Headers, message: JmsMessage) -> bytes:
        """Return the body, and declare its kind by content type or marker header.

        The broker doesn't distinguish kinds of body. It parses headers character by character, so each
        character costs time. ASCII text therefore has the content type text/plain without a charset.
        """
        kind = message.body_kind
        text = "" if kind is BYTES else text_of(message)
        body = bytes_of(message) if kind is BYTES else text.encode()
        if kind is EMPTY or _CONTENT_TYPE in message.properties or is_of_rabbitmq_client(body):
            headers.append((BODY_KIND, kind))
        elif kind is TEXT:
            headers.append((_CONTENT_TYPE, _ASCII if text.isascii() else _TEXT))
        headers.append(("content-length", str(len(body))))
        return body

    def decode_body(self, frame: Frame, headers: Mapping[str, str]) -> tuple[BodyKind, Body]:
        """Decode the body; determine its kind by this package's marker header, else by the content type.

        Raises:
            PoisonMessageError: The text isn't UTF-8, or RabbitMQ's Java client serialized the message.
        """
        kind = marked_kind(headers) if BODY_KIND in headers else None
        if kind is EMPTY:
            return EMPTY, None
        if kind is None:
            said = headers.get(_CONTENT_TYPE, "")
            kind = TEXT if said in _OURS or said.lower().startswith(_TEXTUAL) else BYTES
        if kind is TEXT:
            return TEXT, decode_text(frame.body)
        if BODY_KIND not in headers and is_of_rabbitmq_client(frame.body):
            raise PoisonMessageError(
                "RabbitMQ's JMS client serialized it for Java. Let it send to an AMQP destination, "
                'new RMQDestination("orders", "", "orders", "orders"), and it sends plain text or bytes'
            )
        return BYTES, frame.body

    def decode_properties(self, headers: Mapping[str, str]) -> Mapping[str, PropertyValue]:
        """Return the properties without the content type that this package set itself."""
        properties = super().decode_properties(headers)
        said = properties.get(_CONTENT_TYPE)
        if said not in _OURS or BODY_KIND in headers:  # with the marker, the content type is a user property
            return properties
        return {name: value for name, value in properties.items() if name != _CONTENT_TYPE} or NO_PROPERTIES

    def delivery_count(self, headers: Mapping[str, str]) -> int | None:
        """Return the delivery count of a quorum queue; `None` for a first delivery or a classic queue."""
        count = number(headers, "x-delivery-count")
        return None if count is None else count + 1


def _unescaped(destination: Destination) -> Destination:
    return replace(destination, name=destination.name.replace(_SLASH, "/"))


def _durable(name: str, client_id: str | None) -> dict[str, str]:
    # Dots of the client id are escaped: `a` + `b.c` and `a.b` + `c` are different subscriptions.
    scope = None if client_id is None else client_id.replace("%", "%25").replace(".", "%2E")
    scoped = name if scope is None else f"{scope}.{name}"
    return {"id": scoped, "durable": "true", "auto-delete": "false"}
