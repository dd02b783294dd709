"""Base class of dialects: headers, destinations, bodies and subscriptions of a STOMP broker."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import lru_cache, partial
from types import MappingProxyType
from typing import ClassVar, Final, NamedTuple, TypeAlias, TypeVar

from airflow_provider_jmsjca.core.configuration.destination_options import broker_options
from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.core.message import (
    DEFAULT_PRIORITY,
    Body,
    BodyKind,
    JmsMessage,
    PropertyValue,
    unchecked_message,
)
from airflow_provider_jmsjca.core.message.checks import HIGHEST_PRIORITY, HIGHEST_RECEIVED_PRIORITY
from airflow_provider_jmsjca.core.name_syntax import LITERAL, NameSyntax
from airflow_provider_jmsjca.core.selector import Selector
from airflow_provider_jmsjca.errors import (
    CapabilityError,
    ConfigurationError,
    PoisonMessageError,
)
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.transports.base import BrokerInfo, Capabilities, Outgoing, Subscription
from airflow_provider_jmsjca.transports.settings import warn_once
from airflow_provider_jmsjca.transports.stomp.dialects.settlement import (
    AdministrationKind,
    Cumulative,
    Recovery,
    UnitKind,
)
from airflow_provider_jmsjca.transports.stomp.wire.frames import BROWSER, Frame, encode_headers, unescape

_log: Final = safe_logger(__name__)

BODY_KIND: Final = "JMS_JMSJCA_BodyKind"
"""Header with the kind of the body, sent only if the broker would lose the kind."""

TEXT: Final = BodyKind.TEXT
BYTES: Final = BodyKind.BYTES
EMPTY: Final = BodyKind.EMPTY
"""Aliases for speed: looking up an enum member takes ten times as long."""

BODILESS: Final = "bodiless"
"""Destination option: the kind of a message without a body, where the broker doesn't report it."""
BODILESS_KINDS: Final[frozenset[str]] = frozenset({TEXT, EMPTY})

RENAMED: Final = "JMS_JMSJCA_Property_"
"""Prefix for the header of a property whose own name is a header of STOMP or of the broker."""

Headers: TypeAlias = list[tuple[str, str]]
Command: TypeAlias = tuple[str, dict[str, str]]
"""A command of STOMP and its headers."""

NO_PROPERTIES: Final[Mapping[str, PropertyValue]] = MappingProxyType({})
RESERVED: Final = frozenset(
    {
        "ack",
        "content-length",
        "correlation-id",
        "destination",
        "expires",
        "id",
        "message-id",
        "persistent",
        "priority",
        "receipt",
        "redelivered",
        "reply-to",
        "subscription",
        "timestamp",
        "transaction",
        "type",
        BODY_KIND,
    }
)
"""Headers with a special meaning in sent or received messages."""

_LARGEST: Final = 2**63 - 1
_KINDS: Final[Mapping[str, BodyKind]] = {str(kind): kind for kind in BodyKind}


def number(headers: Mapping[str, str], name: str) -> int | None:
    """Return a numeric header; `None` if it is missing.

    Raises:
        PoisonMessageError: The header exists but is not a number.
    """
    text = headers.get(name)
    return None if text is None else whole(name, text)


def whole(name: str, text: str) -> int:
    """Return a header as a non-negative number that fits a Java `long`.

    Raises:
        PoisonMessageError: The header is not such a number.
    """
    try:
        found = int(text)
    except ValueError:
        found = -1
    if 0 <= found <= _LARGEST:
        return found
    raise PoisonMessageError(f"the header {name!r} is not a number from 0 to 2^63-1: {text[:40]!r}")


def decode_text(data: bytes) -> str:
    """Return text in plain UTF-8.

    Raises:
        PoisonMessageError: The data isn't plain UTF-8.
    """
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise PoisonMessageError(
            f"the text is not valid UTF-8: invalid byte at offset {error.start}"
        ) from error


def no_body(headers: Mapping[str, str], product: str) -> tuple[BodyKind, str | None]:
    """Return the kind of a message without a body, if this package sent it.

    Raises:
        PoisonMessageError: Another client sent it. The broker may have dropped the body, which can't be
            detected.
    """
    kind = marked_kind(headers)
    if kind is TEXT:
        return TEXT, ""
    if kind is EMPTY:
        return EMPTY, None
    raise PoisonMessageError(
        f"it came without a body: {product} leaves out the body of a Java map, stream or object message over "
        "STOMP, so these look like an empty text. Send text or bytes. If no such Java messages come, give "
        f"the destination the option {BODILESS}=text or {BODILESS}=empty"
    )


def text_of(message: JmsMessage) -> str:
    """Return the body of a text message; a missing one counts as empty."""
    return message.body if isinstance(message.body, str) else ""


def bytes_of(message: JmsMessage) -> bytes:
    """Return the body of a bytes message; a missing one counts as empty."""
    return message.body if isinstance(message.body, bytes) else b""


def marked_kind(headers: Mapping[str, str]) -> BodyKind | None:
    """Return the kind from the marker header (`BODY_KIND`), if this package sent the message."""
    return _KINDS.get(headers.get(BODY_KIND, ""))


_ACKNOWLEDGEMENT: Final = re.compile(rb"\nack:([^\n]*+)")
_CONTENT_LENGTH: Final = "content-length"
_LOWEST_NUMBER: Final = 0
_T = TypeVar("_T")


class Template(NamedTuple):
    """Pattern of frame heads that differ only in id, timestamp, redelivered flag and some properties.

    Attributes:
        match: Matches a head; its groups contain the differing values.
        identifier: Number of the group with the id.
        timestamp: Number of the group with the timestamp.
        redelivered: Number of the group with the redelivered flag; 0 if the head has no such flag.
        properties: Group number, header and property name of each differing property.
        headers: All headers of one example, decoded.
        message: The message of that example, without its body.
    """

    match: Callable[[str], re.Match[str] | None]
    identifier: int
    timestamp: int
    redelivered: int
    properties: tuple[tuple[int, str, str], ...]
    headers: Mapping[str, str]
    message: JmsMessage


@lru_cache(maxsize=1024)
def destination_of(text: str) -> Destination | None:
    """Return the destination of `/queue/name` or `/topic/name`; `None` for other text. Cached."""
    for kind in DestinationKind:
        prefix = f"/{kind}/"
        if text.startswith(prefix) and len(text) > len(prefix):
            return Destination(kind, text[len(prefix) :])
    return None


class Dialect(ABC):
    """STOMP as one broker implements it. Dialects are stateless; CONNECTED's `server` header selects one.

    Attributes:
        product: The name for `BrokerInfo`.
        capabilities: Capabilities of the broker in its default configuration.
        names: Syntax of destination names.
        unit_kind: How units of work are implemented.
        administration: The interface for queue statistics, browsing and changes of messages.
        bulk_transactions: Whether many messages are sent in transactions, because that is faster on this
            broker, and each transaction is atomic and durable.
        errors_name_frames: Whether an ERROR names its frame by `receipt-id`. Otherwise an ERROR fails all
            sends that wait for receipts at that moment.
        frame_end: Terminator of a body without content-length.
        cumulative: Which messages an ACK settles besides the named one, in a subscription with `ack:client`.
        returns_through_another: Whether a NACK needs another active subscription once the subscription of the
            message has ended. The transport then opens a topic subscription.
        writes_singly: Whether the broker writes each message separately.
        secret_length: Number of random characters at the start of subscription and transaction ids.
        receipt_length: Number of random characters in a receipt id; a multiple of four.
        usual_prefetch: Default maximum of unsettled messages of a consumer.
        counts_messages: Whether the broker limits the number of unsettled messages of a consumer.
        highest_priority: Maximum message priority; JMS has 0 to 9.
        temporary: Prefixes of `reply-to` names that the broker accepts only unchanged.
        cancelled: Part of the ERROR text that reports that the broker has ended a subscription.
        forgotten: Part of the ERROR text that reports a message that can no longer be acknowledged.
        ways_out: Part of the ERROR text about a message over a limit -> advice for the user.
        hidden: Received headers that are not message properties.
        unread: Hidden headers with values that don't affect the message.
        decisive: Visible headers that affect decoding of the body, each with the set of values that decode
            alike.
        identifier: The header with the message id.
        expires: The header with the expiration, in milliseconds since the epoch.
        taken: Names that a property can't have on the wire; such properties are sent under another name.
        concealed: Properties that the broker hides from STOMP clients; a copy under another name is sent too.
        consumer_options: Destination options that are headers of SUBSCRIBE.
        producer_options: Queue options that are headers of SEND.
        reading_options: Destination options that control the decoding of received messages.
        choices: Options that accept only certain values -> these values.
        reasons: Option -> reason for which it is refused, or restricted to the values of `choices`.
        warnings: Queue option -> its effect on messages sent to the queue.
        no_local: Consumer options that exclude messages of the same connection.
    """

    product: ClassVar[str]
    capabilities: ClassVar[Capabilities]
    names: ClassVar[NameSyntax] = LITERAL
    unit_kind: ClassVar[UnitKind] = UnitKind.CONFIRM_THEN_ACKNOWLEDGE
    administration: ClassVar[AdministrationKind] = AdministrationKind.NONE
    bulk_transactions: ClassVar[bool] = False
    errors_name_frames: ClassVar[bool] = False
    frame_end: ClassVar[bytes] = b"\0"
    cumulative: ClassVar[Cumulative] = Cumulative.UNUSED
    returns_through_another: ClassVar[bool] = False
    writes_singly: ClassVar[bool] = False
    secret_length: ClassVar[int] = 11
    receipt_length: ClassVar[int] = 12
    usual_prefetch: ClassVar[int] = 200
    counts_messages: ClassVar[bool] = True
    highest_priority: ClassVar[int] = HIGHEST_PRIORITY
    temporary: ClassVar[tuple[str, ...]] = ()
    cancelled: ClassVar[str] = "\0"
    forgotten: ClassVar[str] = "\0"
    ways_out: ClassVar[Mapping[str, str]] = {}
    hidden: ClassVar[frozenset[str]] = RESERVED
    unread: ClassVar[frozenset[str]] = frozenset({"ack", "content-length", "receipt", "subscription"})
    decisive: ClassVar[Mapping[str, frozenset[str]]] = MappingProxyType({})
    identifier: ClassVar[str] = "message-id"
    expires: ClassVar[str] = "expires"
    taken: ClassVar[frozenset[str]] = RESERVED
    concealed: ClassVar[frozenset[str]] = frozenset()
    consumer_options: ClassVar[frozenset[str]] = frozenset()
    producer_options: ClassVar[frozenset[str]] = frozenset()
    reading_options: ClassVar[frozenset[str]] = frozenset()
    choices: ClassVar[Mapping[str, frozenset[str]]] = MappingProxyType({})
    reasons: ClassVar[Mapping[str, str]] = MappingProxyType({})
    warnings: ClassVar[Mapping[str, str]] = MappingProxyType({})
    no_local: ClassVar[frozenset[str]] = frozenset()

    def process(self, session: str) -> str | None:
        """Return the part of a CONNECTED session id that names the broker process; `None`: no part does."""
        del session
        return None

    def proof(self, session: str) -> str | None:
        """Return text in every MESSAGE head that no producer can know, or `None`.

        Frames that contain neither this text nor a random id of this client count as forged.

        Args:
            session: The session id of CONNECTED.
        """
        del session
        return None

    # --- subscriptions

    def check(self, subscription: Subscription, broker: BrokerInfo, client_id: str | None) -> None:
        """Refuse a subscription that the broker would silently ignore or weaken.

        Raises:
            CapabilityError: The broker lacks a capability.
            ConfigurationError: A setting is missing or invalid.
        """
        if subscription.prefetch is not None and subscription.prefetch < 1:
            raise ConfigurationError(f"the prefetch must be at least 1, not {subscription.prefetch}")
        if subscription.selector:
            self.capabilities.require(broker, "selector", purpose=f"the selector {subscription.selector!r}")
        name = subscription.durable_name
        if name is None:
            return
        purpose = f"the durable subscription {name!r}"
        self.capabilities.require(broker, "durable_subscription", purpose=purpose)
        faults = []
        if subscription.destination.kind is not DestinationKind.TOPIC:
            faults.append(f"{purpose} needs a topic, not {subscription.destination}")
        if not client_id:
            faults.append(f"{purpose} needs a client id on its connection")
        if faults:
            raise ConfigurationError(faults)

    def prefetch(self, subscription: Subscription) -> int:
        """Return the maximum number of unsettled messages."""
        return self.usual_prefetch if subscription.prefetch is None else subscription.prefetch

    def window(self, subscription: Subscription) -> int | None:
        """Return the maximum size of unsettled messages in bytes, if the broker limits it."""
        del subscription
        return None

    @abstractmethod
    def subscribe(self, subscription: Subscription, client_id: str | None) -> dict[str, str]:
        """Return the headers of SUBSCRIBE; the caller adds `ack`, `receipt` and, if it is missing, `id`."""

    def after_subscribe(self, subscription: Subscription, identifier: str) -> list[Command]:
        """Return the frames to send once the broker has confirmed a SUBSCRIBE.

        Override this for a broker that otherwise withholds messages that arrived before SUBSCRIBE. The
        consumer has started when the broker has confirmed the last frame. Most brokers need no frames.

        Args:
            subscription: The confirmed subscription.
            identifier: An unused subscription id. Messages that arrive for it are dropped.
        """
        del subscription, identifier
        return []

    def delete_durable(self, subscription: Subscription, client_id: str | None) -> list[Command]:
        """Return the frames that delete an idle durable subscription.

        Raises:
            CapabilityError: The broker has no durable subscriptions.
        """
        del client_id
        raise CapabilityError(
            f"deleting the durable subscription {subscription.durable_name!r} needs the capability "
            f"'durable_subscription', which {self.product} lacks"
        )

    @abstractmethod
    def recovery(self, subscription: Subscription) -> Recovery:
        """Return the way in which unsettled messages are handed back to the broker."""

    def orphan(self, token: bytes, keeper: str) -> bytes:
        """Return the value of `id` in the NACK of a message whose subscription has ended.

        Args:
            token: The message's acknowledgement id, as received on the wire.
            keeper: Id of the active subscription that the NACK uses; empty if the broker needs no such id.

        Returns:
            Bytes to send unchanged: escaped input stays escaped.
        """
        del keeper
        return token

    def undelivered_token(self, error: str, last: Frame | None, since: int) -> bytes | None:
        """Return the acknowledgement id of a message to an ended subscription, if `error` reports one.

        Args:
            error: The text of an ERROR frame.
            last: The last message received on this connection.
            since: Number of such reports since `last`.

        Raises:
            ConnectionLostError: `error` reports such a message, but its id can't be determined. The end of
                the connection returns the message to the broker.
        """
        del error, last, since
        return None

    def acknowledgement(self, frame: Frame) -> bytes | None:
        r"""Return the value of `id` in ACK and NACK, as sent on the wire.

        The default is the header `ack`. For a server that expects its message id, write
        `return frame.first(b"\nmessage-id:")`.

        Args:
            frame: The MESSAGE.

        Returns:
            Escaped bytes. `None`, empty bytes, or bytes with NUL end the connection, because such a message
            can't be settled.
        """
        found = _ACKNOWLEDGEMENT.search(frame.head)
        return None if found is None else found[1]

    def ends_browsing(self, frame: Frame) -> bool:
        """Return whether a MESSAGE marks the end of browsing; producers must be unable to forge it."""
        return frame.first(BROWSER) == b"end"

    # --- messages out

    @abstractmethod
    def destination(self, destination: Destination) -> str:
        """Return the `destination` header; `destination_from` is its inverse, so override both or neither."""

    def destination_from(self, text: str) -> Destination | None:
        """Return the destination for a text that `destination` wrote; `None` for any other text."""
        return destination_of(text)

    def encode(self, outgoing: Outgoing, new_id: Callable[[], str], first: bytes = b"") -> bytes:
        """Return the SEND frame.

        Args:
            outgoing: The message to send.
            new_id: Returns a new message id, for brokers that assign none. Of the characters that STOMP
                escapes, the id may contain only colons.
            first: Encoded header lines to put before all others.

        Raises:
            CapabilityError: The broker or STOMP can't carry this kind of body, or the delay.
            ConfigurationError: A value can't be sent; the text names it.
        """
        message = outgoing.message
        if message.body_kind not in self.capabilities.body_kinds:
            raise CapabilityError(f"a {message.body_kind} message can't be sent to {self.product} over STOMP")
        to = outgoing.destination
        address = address_of(self, to, to.options, persistent=message.persistent)
        headers: Headers = []
        self._optional_headers(headers, outgoing)
        self.special_headers(headers, outgoing)
        if message.properties:
            self.property_headers(headers, message.properties)
        try:
            body = self.encode_body(headers, message)
        except UnicodeEncodeError as error:
            raise ConfigurationError(
                f"the text is not valid Unicode: lone surrogate at character {error.start}"
            ) from error
        lines = b""
        if len(headers) == 1 and headers[0][0] == _CONTENT_LENGTH:  # most bytes messages have no other header
            lines = b"content-length:%d\n" % len(body)
        elif headers:
            self.check_headers([*address.headers, *headers], body)
            lines = encode_headers(headers)
        identity = self.identity(outgoing.message_id, new_id)
        return b"".join((b"SEND\n", first, address.lines, identity, lines, b"\n", body, b"\0"))

    def _optional_headers(self, headers: Headers, outgoing: Outgoing) -> None:
        message = outgoing.message
        if message.priority != DEFAULT_PRIORITY:
            highest = self.highest_priority
            if not _LOWEST_NUMBER <= message.priority <= highest:
                raise ConfigurationError(f"the priority {message.priority} is not between 0 and {highest}")
            headers.append(("priority", str(message.priority)))
        if message.correlation_id is not None:
            headers.append(("correlation-id", message.correlation_id))
        if message.reply_to is not None:
            headers.append(("reply-to", self.reply_to(message.reply_to)))
        if message.type is not None:
            headers.append(("type", message.type))
        if outgoing.delay is not None and outgoing.delay > timedelta(0):
            if not self.capabilities.delayed_delivery:
                raise CapabilityError(
                    f"a delay needs the capability 'delayed_delivery', which {self.product} lacks"
                )
            headers.append(("AMQ_SCHEDULED_DELAY", str(round(outgoing.delay.total_seconds() * 1000))))

    def reply_to(self, destination: Destination) -> str:
        """Return the `reply-to` header."""
        return self.destination(destination)

    def reply_to_from(self, text: str) -> Destination:
        """Return the destination that a `reply-to` header names, in the broker's form or another client's.

        Raises:
            PoisonMessageError: The header names no destination.
        """
        try:
            return self.destination_from(text) or Destination.from_header(text)
        except ConfigurationError as error:
            raise PoisonMessageError(f"the header 'reply-to' names no destination: {text[:80]!r}") from error

    def identity(self, given: str | None, new_id: Callable[[], str]) -> bytes:
        """Return encoded header lines with message id and timestamp; empty if the broker sets them.

        Args:
            given: The id to send; `None`: use a new id.
            new_id: Returns a new message id; see `encode`.
        """
        del given, new_id
        return b""

    def special_headers(self, headers: Headers, outgoing: Outgoing) -> None:
        """Add the headers specific to this broker."""
        if outgoing.message.expiration:
            headers.append((self.expires, str(outgoing.message.expiration)))

    def property_headers(self, headers: Headers, properties: Mapping[str, PropertyValue]) -> None:
        """Add the properties. STOMP has text only; null properties are omitted."""
        taken, concealed, limit = self.taken, self.concealed, self.capabilities.max_property_characters
        for name, value in properties.items():
            if not name:
                raise ConfigurationError("a property has no name")
            if value is None:
                continue
            text = value if isinstance(value, str) else str(value)
            if isinstance(value, bool):
                text = text.lower()
            if limit is not None and len(text) > limit:
                raise ConfigurationError(
                    f"the property {name!r} has {len(text)} characters; {self.product} takes {limit}: "
                    "spread it over several properties, or put it into the body"
                )
            headers.append((f"{RENAMED}{name}" if name in taken else name, text))
            if name in concealed:
                headers.append((f"{RENAMED}{name}", text))

    def portable(self, selector: str) -> str:
        """Return a selector in the broker's form; empty if it is blank.

        A property with the name of a header is matched under the name that `property_headers` gives it. It is
        also matched under its own name, which producers other than STOMP clients use.

        Raises:
            ConfigurationError: The text is no valid selector.
            CapabilityError: The selector uses too many properties with names of headers.
        """
        return Selector.parse(selector).portable_with({name: f"{RENAMED}{name}" for name in self.taken})

    @abstractmethod
    def encode_body(self, headers: Headers, message: JmsMessage) -> bytes:
        """Return the encoded body, and add the headers that describe it."""

    def check_headers(self, headers: Headers, body: bytes) -> None:
        """Refuse headers that the broker can't process. Most brokers accept any."""
        del headers, body

    # --- messages in

    def decode(self, frame: Frame, headers: Mapping[str, str], subscription: Subscription) -> JmsMessage:
        """Return the message of a MESSAGE frame.

        Args:
            frame: The received frame.
            headers: Decoded headers of the frame.
            subscription: The subscription of the message.

        Raises:
            PoisonMessageError: The message can't be decoded.
        """
        body_kind, body = self.decode_body(frame, headers)
        get = headers.get
        identifier, reply_to = get(self.identifier), get("reply-to")
        timestamp, expires = get("timestamp"), get(self.expires)
        return unchecked_message(
            body_kind,
            body,
            self.decode_properties(headers),
            None if identifier is None else self.lasting(identifier),
            get("correlation-id"),
            None if reply_to is None else self.reply_to_from(reply_to),
            get("type"),
            self.origin(headers, subscription),
            None if timestamp is None else whole("timestamp", timestamp),
            0 if expires is None else whole(self.expires, expires),
            _priority(headers) if "priority" in headers else DEFAULT_PRIORITY,
            get("persistent") == "true",
            get("redelivered") == "true",
            self.delivery_count(headers),
        )

    def decode_alike(self, frame: Frame, template: Template, found: re.Match[str]) -> JmsMessage:
        """Return the message of a frame that matches a template.

        Args:
            frame: The received frame.
            template: Template of its head.
            found: Match with the differing values.

        Raises:
            PoisonMessageError: The message can't be decoded.
        """
        identifier, timestamp, redelivered = found.group(
            template.identifier, template.timestamp, template.redelivered
        )
        body_kind, body = self.decode_body(frame, template.headers)
        like = template.message
        properties = like.properties
        if properties:
            properties = dict(properties)
            for group, _, name in template.properties:
                properties[name] = unescape(found[group])
        return unchecked_message(
            body_kind,
            body,
            properties,
            self.lasting(unescape(identifier)),
            like.correlation_id,
            like.reply_to,
            like.type,
            like.destination,
            whole("timestamp", timestamp),
            like.expiration,
            like.priority,
            like.persistent,
            redelivered == "true",
            like.delivery_count,
        )

    def salvage(self, frame: Frame, subscription: Subscription) -> JmsMessage:
        """Return a bytes message with the raw body and the headers of an undecodable message.

        A header that can't be decoded becomes a property of the same name. Raises only `MemoryError`.
        """
        headers = _readable_headers(frame)
        unread: dict[str, str] = {}

        def kept(read: Callable[[], _T], otherwise: _T, name: str) -> _T:
            try:
                return read()
            except MemoryError:
                raise
            except Exception:  # noqa: BLE001 - any error of a dialect; the raw header is kept
                if name in headers:
                    unread[name] = headers[name]
                return otherwise

        identifier, reply_to = headers.get(self.identifier), headers.get("reply-to")
        message = JmsMessage(
            body_kind=BodyKind.BYTES,
            body=frame.body,
            message_id=kept(
                lambda: None if identifier is None else self.lasting(identifier), None, self.identifier
            ),
            correlation_id=headers.get("correlation-id"),
            reply_to=kept(
                lambda: None if reply_to is None else self.reply_to_from(reply_to), None, "reply-to"
            ),
            type=headers.get("type"),
            destination=kept(
                lambda: self.origin(headers, subscription), subscription.destination, "destination"
            ),
            timestamp=kept(lambda: number(headers, "timestamp"), None, "timestamp"),
            expiration=kept(lambda: number(headers, self.expires) or 0, 0, self.expires),
            priority=kept(lambda: _priority(headers), DEFAULT_PRIORITY, "priority"),
            persistent=headers.get("persistent") == "true",
            redelivered=headers.get("redelivered") == "true",
        )
        shown = {
            kept(partial(self.property_name, name), name, ""): value
            for name, value in headers.items()
            if name not in self.hidden
        }
        return replace(message, properties=MappingProxyType(unread | shown))

    def decode_properties(self, headers: Mapping[str, str]) -> Mapping[str, PropertyValue]:
        """Return the properties among the headers under their original names."""
        hidden = self.hidden
        if hidden.issuperset(headers):
            return NO_PROPERTIES
        name_of = self.property_name
        return {name_of(header): value for header, value in headers.items() if header not in hidden}

    def property_name(self, header: str) -> str:
        """Return the property name of a header that isn't hidden."""
        return header.removeprefix(RENAMED)

    @abstractmethod
    def decode_body(self, frame: Frame, headers: Mapping[str, str]) -> tuple[BodyKind, Body]:
        """Return the kind of the body, and the decoded body."""

    def lasting(self, identifier: str) -> str | None:
        """Return the part of a message id that redelivery doesn't change; `None`: no part."""
        return identifier

    def delivery_count(self, headers: Mapping[str, str]) -> int | None:
        """Return the number of deliveries, 1 for the first, or `None` if unknown."""
        del headers
        return None

    def origin(self, headers: Mapping[str, str], subscription: Subscription) -> Destination:
        """Return the destination to which the message was sent."""
        return self.destination_from(headers.get("destination", "")) or subscription.destination


def _priority(headers: Mapping[str, str]) -> int:
    found = number(headers, "priority")
    if found is None:
        return DEFAULT_PRIORITY
    if found > HIGHEST_RECEIVED_PRIORITY:
        raise PoisonMessageError(
            f"the header 'priority' holds {found}: more than {HIGHEST_RECEIVED_PRIORITY}"
        )
    return found


def _readable_headers(frame: Frame) -> dict[str, str]:
    """Return the headers, raw where they can't be decoded; the first of repeated headers counts."""
    headers: dict[str, str] = {}
    for line in frame.head.split(b"\n")[1:]:
        name, _, value = line.decode(errors="backslashreplace").partition(":")
        headers.setdefault(_unescaped(name), _unescaped(value))
    return headers


def _unescaped(text: str) -> str:
    try:
        return unescape(text)
    except PoisonMessageError:
        return text


def check_name(destination: Destination) -> None:
    """Refuse a name in the provider's JNDI, which only a Java client can look up.

    Raises:
        ConfigurationError: The destination has such a name. The broker would create a queue of that name.

    Source: J86, J90.
    """
    if destination.name.lower().startswith("jndi://"):
        raise ConfigurationError(
            f"destination {destination}: jndi:// names are in the provider's own JNDI, where STOMP can't "
            f"look. Expected the name at the broker, such as {destination.kind}://orders, or lookup:// and "
            "the name of an administered object"
        )


def check_broker_options(dialect: Dialect, destination: Destination) -> None:
    """Refuse options that this dialect doesn't know, and values that it doesn't allow.

    The broker would ignore them, or they would change a header of this client.

    Raises:
        ConfigurationError: Lists every such option and value.

    Source: J91.
    """
    known = dialect.consumer_options | dialect.producer_options | dialect.reading_options

    def reason(key: str) -> str:
        return f" ({dialect.reasons[key]})" if key in dialect.reasons else ""

    faults = [
        f"destination {destination}: {key} is not an option of a destination on "
        f"{dialect.product}{reason(key)}, "
        + (f"expected one of: prefetch, {', '.join(sorted(known))}" if known else "expected prefetch or none")
        for key in broker_options(destination)
        if key not in known
    ]
    faults += [
        f"destination {destination}: {key} is {given!r}{reason(key)}, "
        f"expected one of: {', '.join(sorted(choices))}"
        for key, given in broker_options(destination).items()
        if (choices := dialect.choices.get(key)) is not None and given not in choices
    ]
    if faults:
        raise ConfigurationError(faults)


def consumer_headers(dialect: Dialect, destination: Destination) -> dict[str, str]:
    """Return the options of a destination that are headers of SUBSCRIBE.

    Raises:
        ConfigurationError: The broker doesn't know an option, or the destination is a name in JNDI.

    Source: J91.
    """
    check_name(destination)
    check_broker_options(dialect, destination)
    return {k: v for k, v in broker_options(destination).items() if k in dialect.consumer_options}


def producer_headers(dialect: Dialect, destination: Destination) -> list[tuple[str, str]]:
    """Return the options of a destination that are headers of SEND; none for a topic.

    Raises:
        ConfigurationError: The broker doesn't know an option.

    Source: J91.
    """
    check_broker_options(dialect, destination)
    if destination.kind is DestinationKind.TOPIC:
        return []
    for key in broker_options(destination):
        if key in dialect.warnings:
            warn_once(_log, f"destination {destination}: with {key} {dialect.warnings[key]}")
    return [(k, v) for k, v in broker_options(destination).items() if k in dialect.producer_options]


class Address(NamedTuple):
    """Common headers of all messages to a destination.

    Attributes:
        headers: Names and values.
        lines: The headers, encoded.
    """

    headers: tuple[tuple[str, str], ...]
    lines: bytes


@lru_cache(maxsize=1024)
def address_of(
    dialect: Dialect,
    destination: Destination,
    options: tuple[tuple[str, str], ...],
    *,
    persistent: bool,
) -> Address:
    """Return the common headers of every SEND to a destination. Cached.

    Args:
        dialect: The dialect of the broker.
        destination: The destination.
        options: Options of the destination, which the comparison of destinations ignores.
        persistent: Whether the messages are persistent.
    """
    check_name(destination)
    headers = (
        ("destination", dialect.destination(destination)),
        # `persistent:false` is the default; RabbitMQ would declare a queue that ends with the connection.
        *((("persistent", "true"),) if persistent else ()),
        *(producer_headers(dialect, destination) if options else ()),
    )
    dialect.check_headers([*headers], b"")
    return Address(headers, encode_headers(headers))
