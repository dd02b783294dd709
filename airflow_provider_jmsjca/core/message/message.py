"""JMS messages as values, and their `identity`, which is equal for deliveries of the same message.

The broker's id alone does not identify a message. On RabbitMQ the producer chooses it, copies in several
queues share it, and a reinstalled broker starts again with the same ids. The identity therefore combines the
id, destination, timestamp, body and properties. It excludes values that a broker may change between
deliveries: the redelivered flag and the delivery count. `docs/architecture.md` lists the components that
remember messages, and for how long.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, TypedDict, Unpack

from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.core.message.checks import (
    HIGHEST_RECEIVED_PRIORITY,
    checked_body,
    checked_headers,
    checked_properties,
    header_expectation,
    shortened,
)
from airflow_provider_jmsjca.core.message.property_reader import PropertyReader
from airflow_provider_jmsjca.core.message.value_types import (
    BodyKind,
    ItemType,
    ItemValue,
    PropertyType,
    PropertyValue,
)
from airflow_provider_jmsjca.core.traceparent import TRACEPARENT, valid_traceparent
from airflow_provider_jmsjca.errors import ConfigurationError

VERSION = 1

Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None

_HEADERS = (
    "message_id",
    "correlation_id",
    "reply_to",
    "type",
    "destination",
    "timestamp",
    "expiration",
    "priority",
    "persistent",
    "redelivered",
    "delivery_count",
)
_KEYS = frozenset({"version", "body_kind", "body", "properties", "property_types", "item_types", *_HEADERS})
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def to_json(message: JmsMessage) -> dict[str, Json]:
    """Return the JSON form: dictionaries, lists, text, finite numbers, booleans and `None` only."""
    result: dict[str, Json] = {
        "version": VERSION,
        "body_kind": str(message.body_kind),
        "body": _body_to_json(message.body),
        "properties": {name: _to_json(value) for name, value in message.properties.items()},
        "property_types": {name: str(kind) for name, kind in message.property_types.items()},
        "item_types": _named_to_json({str(key): str(kind) for key, kind in message.item_types.items()}),
    }
    for name in _HEADERS:
        value = getattr(message, name)
        result[name] = _to_json(str(value) if isinstance(value, Destination) else value)
    return result


def _body_to_json(body: Any) -> Json:
    if isinstance(body, Mapping):
        return _named_to_json(body)
    if isinstance(body, (tuple, list)):
        return [_to_json(value) for value in body]
    return _to_json(body)


def _named_to_json(values: Mapping[str, Any]) -> Json:
    if any(_UNSTORABLE.search(name) for name in values):
        return [[_to_json(name), _to_json(value)] for name, value in values.items()]
    return {name: _to_json(value) for name, value in values.items()}


def _to_json(value: Any) -> Json:
    match value:
        case bytes():
            return {"base64": base64.b64encode(value).decode("ascii")}
        case float() if not math.isfinite(value):
            return {"number": "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}
        case str() if _UNSTORABLE.search(value):
            return {"utf8": base64.b64encode(value.encode("utf-8", "surrogatepass")).decode("ascii")}
        case None | bool() | int() | float() | str():
            return value
    raise TypeError(f"no JSON form for {type(value).__name__}")


def arguments_from_json(data: object) -> dict[str, Any]:
    """Return the `JmsMessage` arguments for a message's JSON form. Missing headers get their defaults.

    Raises:
        ConfigurationError: `data` isn't the JSON form of a message; lists every fault with its position.
    """
    if not isinstance(data, dict):
        raise ConfigurationError(f"message: expected a JSON object, not {type(data).__name__}")
    reader = _Reader(data)
    arguments = reader.arguments()
    if reader.faults:
        raise ConfigurationError(reader.faults)
    return arguments


class _Reader:
    def __init__(self, data: dict[Any, Any]) -> None:
        self._data = data
        self.faults: list[str] = []

    def arguments(self) -> dict[str, Any]:
        data = self._data
        self.faults.extend(f"message: unknown key {key!r}" for key in data if key not in _KEYS)
        if data.get("version") != VERSION:
            self._fault("version", data.get("version"), f"{VERSION}")
        try:
            kind = BodyKind(str(data.get("body_kind")))
        except ValueError:
            self._fault("body_kind", data.get("body_kind"), f"one of {', '.join(BodyKind)}")
            return {}
        result: dict[str, Any] = {"body_kind": kind, "body": self._body(kind, data.get("body"))}
        properties = self._object("properties")
        result["properties"] = {
            name: self._value(f"properties.{name}", value, allow_bytes=False)
            for name, value in properties.items()
        }
        result["property_types"] = {
            name: self._type(PropertyType, f"property_types.{name}", value)
            for name, value in self._object("property_types").items()
        }
        result["item_types"] = {
            self._item_key(kind, name): self._type(ItemType, f"item_types.{name}", value)
            for name, value in self._item_types(kind).items()
        }
        for name in _HEADERS:
            if name in data:
                result[name] = self._header(name, data[name])
        return result

    def _fault(self, place: str, value: object, expected: str) -> None:
        self.faults.append(f"message, {place}: value {shortened(value)}: expected {expected}")

    def _object(self, key: str) -> dict[str, Any]:
        value = self._data.get(key, {})
        if isinstance(value, dict) and all(isinstance(name, str) for name in value):
            return value
        self._fault(key, value, "a JSON object")
        return {}

    def _item_types(self, kind: BodyKind) -> dict[str, Any]:
        pairs: Any = self._data.get("item_types")
        if kind is BodyKind.MAP and _are_pairs(pairs):
            return {self._text("item_types", name): value for name, value in pairs}
        return self._object("item_types")

    def _item_key(self, kind: BodyKind, name: str) -> str | int:
        if kind is not BodyKind.STREAM:
            return name
        if name.isascii() and name.isdecimal() and len(name) <= 9:  # noqa: PLR2004 - no stream is longer
            return int(name)
        self._fault("item_types", name, "the index of an item")
        return name

    def _type(self, kind: type[PropertyType | ItemType], place: str, value: object) -> Any:
        try:
            return kind(str(value))
        except ValueError:
            self._fault(place, value, f"one of {', '.join(kind)}")
            return None

    def _body(self, kind: BodyKind, value: Any) -> Any:
        match kind, value:
            case BodyKind.EMPTY, None:
                return None
            case BodyKind.MAP, list() if _are_pairs(value):
                return {self._text("body", name): self._value("body", item) for name, item in value}
            case BodyKind.MAP, dict() if all(isinstance(name, str) for name in value):
                return {name: self._value(f"body.{name}", item) for name, item in value.items()}
            case BodyKind.STREAM, list():
                return tuple(self._value(f"body[{index}]", item) for index, item in enumerate(value))
            case BodyKind.TEXT, _:
                return self._text("body", value)
            case ((BodyKind.BYTES | BodyKind.OBJECT), {"base64": _}):
                return self._value("body", value)
        self._fault("body", value, f"the form of a body of kind {str(kind)!r}")
        return None

    def _text(self, place: str, value: Any) -> str:
        text = self._value(place, value)
        if isinstance(text, str):
            return text
        self._fault(place, value, "text")
        return ""

    def _value(self, place: str, value: Any, *, allow_bytes: bool = True) -> Any:
        match value:
            case None | bool() | int() | str():
                return value
            case float() if math.isfinite(value):
                return value
            case {"number": str(name)} if len(value) == 1 and name in _NUMBERS:
                return _NUMBERS[name]
            case {"base64": str(text)} if len(value) == 1 and allow_bytes:
                return self._octets(place, text)
            case {"utf8": str(text)} if len(value) == 1:
                try:
                    return self._octets(place, text).decode("utf-8", "surrogatepass")
                except UnicodeDecodeError:
                    pass
        markers = (
            '{"base64": ...}, {"number": ...} or {"utf8": ...}'
            if allow_bytes
            else "an object for NaN or text"
        )
        self._fault(place, value, f"text, a finite number, true, false, null, {markers}")
        return None

    def _octets(self, place: str, text: str) -> bytes:
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            self._fault(place, text, "base64")
            return b""

    def _header(self, name: str, value: Any) -> Any:
        if isinstance(value, dict):
            value = self._value(name, value, allow_bytes=False)
        if name in {"reply_to", "destination"} and isinstance(value, str):
            kind, separator, rest = value.partition("://")
            if separator and rest and kind in set(DestinationKind):
                return Destination(DestinationKind(kind), rest)
            self._fault(name, value, "queue://name or topic://name")
            return None
        expected = header_expectation(name, value, highest=HIGHEST_RECEIVED_PRIORITY)
        if expected:
            self._fault(name, value, expected)
        return value


def _are_pairs(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in value)  # noqa: PLR2004 - pairs


__all__ = [
    "DEFAULT_PRIORITY",
    "Body",
    "BodyKind",
    "ItemType",
    "ItemValue",
    "JmsMessage",
    "MessageHeaders",
    "PropertyType",
    "PropertyValue",
    "unchecked_message",
]

Body: TypeAlias = str | bytes | Mapping[str, ItemValue] | Sequence[ItemValue] | None
PropertyTypes: TypeAlias = Mapping[str, PropertyType]
ItemTypes: TypeAlias = Mapping[str, ItemType] | Mapping[int, ItemType]
_Octets: TypeAlias = bytes  # inside the class `bytes` is the constructor

DEFAULT_PRIORITY = 4
_TEXT, _BYTES = BodyKind.TEXT, BodyKind.BYTES  # Python 3.11 needs 60 ns to find a member of an enum
_NOTHING: Mapping[Any, Any] = MappingProxyType({})


def _nothing() -> Mapping[Any, Any]:
    return _NOTHING


class MessageHeaders(TypedDict, total=False):
    """Headers accepted by the constructors of `JmsMessage`, whose attributes describe them."""

    type: str | None
    correlation_id: str | None
    reply_to: Destination | None
    priority: int
    persistent: bool
    expiration: int
    timestamp: int | None
    message_id: str | None
    destination: Destination | None
    redelivered: bool
    delivery_count: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JmsMessage(PropertyReader):
    """One message: a body of one of six kinds, headers and properties.

    The constructors named after the body kinds check their arguments and raise `ConfigurationError` with
    every fault. `JmsMessage(...)` itself checks nothing: transports build received messages with it.

    Attributes:
        body_kind: Kind of the body, one of six.
        body: `str` for text, `bytes` for bytes and object (serialized, opaque), a mapping for map, a
            sequence for stream, `None` for empty.
        properties: User properties by name.
        property_types: Java types of properties that cannot be inferred from the value: byte, short, float,
            and long for small numbers. The others are inferred: `bool` boolean, `int` int or long by its
            size, `float` double, `str` string.
        item_types: Declared types of the items of a map (by name) or stream (by index): a property type, char
            or bytes.
        message_id: The provider's id, stable across redelivery; `None` before sending, or if the message has
            no id.
        destination: Destination to which the message was sent; set on received messages.
        timestamp: Time of sending, in milliseconds since the epoch.
        expiration: Time of expiry, in milliseconds since the epoch; 0 means never.
        priority: 0 (lowest) to 9.
        persistent: Whether the message survives a restart of the broker.
        redelivered: The broker's redelivered flag: a hint that the message was delivered before, not a proof.
        delivery_count: Number of deliveries by the broker, including this one; `None` if not reported.

    Source: JMS 2.0 chapter 3.
    """

    body_kind: BodyKind
    body: Body = field(default=None, hash=False)
    properties: Mapping[str, PropertyValue] = field(default_factory=_nothing, hash=False)
    message_id: str | None = None
    correlation_id: str | None = None
    reply_to: Destination | None = None
    type: str | None = None
    destination: Destination | None = None
    timestamp: int | None = None
    expiration: int = 0
    priority: int = DEFAULT_PRIORITY
    persistent: bool = True
    redelivered: bool = False
    delivery_count: int | None = None
    property_types: PropertyTypes = field(default_factory=_nothing, hash=False)
    item_types: ItemTypes = field(default_factory=_nothing, hash=False)

    @classmethod
    def text(
        cls,
        body: str,
        properties: Mapping[str, PropertyValue] = _NOTHING,
        *,
        property_types: PropertyTypes = _NOTHING,
        **headers: Unpack[MessageHeaders],
    ) -> JmsMessage:
        """Return a text message.

        Args:
            body: The text.
            properties: User properties by name.
            property_types: Java types of properties, where they differ from the inferred ones.
            **headers: `type`, `correlation_id`, `reply_to`, `priority`, `persistent` ... as attributes.

        Raises:
            ConfigurationError: A JMS message can't carry a value; lists all faults.
        """
        return _checked(BodyKind.TEXT, body, properties, property_types, _NOTHING, headers)

    @classmethod
    def bytes(
        cls,
        body: _Octets,
        properties: Mapping[str, PropertyValue] = _NOTHING,
        *,
        property_types: PropertyTypes = _NOTHING,
        **headers: Unpack[MessageHeaders],
    ) -> JmsMessage:
        """Return a bytes message; arguments and errors are those of `text`."""
        return _checked(BodyKind.BYTES, body, properties, property_types, _NOTHING, headers)

    @classmethod
    def map(
        cls,
        body: Mapping[str, ItemValue],
        properties: Mapping[str, PropertyValue] = _NOTHING,
        *,
        property_types: PropertyTypes = _NOTHING,
        item_types: Mapping[str, ItemType] = _NOTHING,
        **headers: Unpack[MessageHeaders],
    ) -> JmsMessage:
        """Return a map message; arguments and errors are those of `text`.

        Args:
            body: Items by name.
            properties: User properties by name.
            property_types: Java types of properties, where they differ from the inferred ones.
            item_types: Java types of items by name, where they differ from the inferred ones.
            **headers: As for `text`.
        """
        return _checked(BodyKind.MAP, body, properties, property_types, item_types, headers)

    @classmethod
    def stream(
        cls,
        body: Sequence[ItemValue],
        properties: Mapping[str, PropertyValue] = _NOTHING,
        *,
        property_types: PropertyTypes = _NOTHING,
        item_types: Mapping[int, ItemType] = _NOTHING,
        **headers: Unpack[MessageHeaders],
    ) -> JmsMessage:
        """Return a stream message; arguments and errors are those of `text`.

        Args:
            body: Items in their order.
            properties: User properties by name.
            property_types: Java types of properties, where they differ from the inferred ones.
            item_types: Java types of items by index from 0, where they differ from the inferred ones.
            **headers: As for `text`.
        """
        return _checked(BodyKind.STREAM, body, properties, property_types, item_types, headers)

    @classmethod
    def object(
        cls,
        body: _Octets,
        properties: Mapping[str, PropertyValue] = _NOTHING,
        *,
        property_types: PropertyTypes = _NOTHING,
        **headers: Unpack[MessageHeaders],
    ) -> JmsMessage:
        """Return an object message with serialized bytes as its opaque body.

        Arguments and errors are those of `text`.
        """
        return _checked(BodyKind.OBJECT, body, properties, property_types, _NOTHING, headers)

    @classmethod
    def empty(
        cls,
        properties: Mapping[str, PropertyValue] = _NOTHING,
        *,
        property_types: PropertyTypes = _NOTHING,
        **headers: Unpack[MessageHeaders],
    ) -> JmsMessage:
        """Return a message without body; arguments and errors are those of `text`."""
        return _checked(BodyKind.EMPTY, None, properties, property_types, _NOTHING, headers)

    @property
    def traceparent(self) -> str | None:
        """The trace that the sender belongs to, from the property `traceparent` of W3C Trace Context.

        `None` without the property. Also `None` for an invalid value, because any sender can set the
        property.
        """
        return valid_traceparent(self.properties.get(TRACEPARENT))

    def to_json(self) -> dict[str, Json]:
        """Return the JSON form, for XCom, events and stores."""
        return to_json(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> JmsMessage:
        """Return the message of a JSON form; the result equals the message passed to `to_json`.

        Raises:
            ConfigurationError: `data` isn't the JSON form of a message; lists every fault with its position.
        """
        return cls(**arguments_from_json(data))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with plain dictionaries, because read-only views can't be pickled."""
        values = {item.name: _plain(getattr(self, item.name)) for item in fields(self)}
        return _rebuild, (values,)


class _Open(PropertyReader):
    """A mutable message, used while the fields are set."""

    __slots__ = JmsMessage.__slots__


def unchecked_message(  # noqa: PLR0917 - a call by position, once for each message
    body_kind: BodyKind,
    body: Body,
    properties: Mapping[str, PropertyValue],
    message_id: str | None = None,
    correlation_id: str | None = None,
    reply_to: Destination | None = None,
    type: str | None = None,  # noqa: A002 - as the field is named
    destination: Destination | None = None,
    timestamp: int | None = None,
    expiration: int = 0,
    priority: int = DEFAULT_PRIORITY,
    persistent: bool = True,
    redelivered: bool = False,
    delivery_count: int | None = None,
) -> JmsMessage:
    """Return a message from positional attributes; the types are inferred, as on received messages.

    This takes less than half the time of `JmsMessage(...)`, which matters for millions of messages. The
    function fills an object of a mutable class, then changes the object's class to `JmsMessage`.
    """
    message: Any = _Open()
    message.body_kind = body_kind
    message.body = body
    message.properties = properties
    message.message_id = message_id
    message.correlation_id = correlation_id
    message.reply_to = reply_to
    message.type = type
    message.destination = destination
    message.timestamp = timestamp
    message.expiration = expiration
    message.priority = priority
    message.persistent = persistent
    message.redelivered = redelivered
    message.delivery_count = delivery_count
    message.property_types = message.item_types = _NOTHING
    message.__class__ = JmsMessage
    found: JmsMessage = message
    return found


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, MappingProxyType) else value


def _rebuild(values: Mapping[str, Any]) -> JmsMessage:
    return JmsMessage(**values)


def _checked(  # noqa: PLR0917 - private, and its callers read in this order
    kind: BodyKind,
    body: object,
    properties: Mapping[str, PropertyValue],
    property_types: PropertyTypes,
    item_types: ItemTypes,
    headers: MessageHeaders,
) -> JmsMessage:
    if not (properties or property_types or item_types or headers):  # then only the body needs a check
        if kind is _TEXT and isinstance(body, str) and body.isascii():
            return unchecked_message(kind, body, _NOTHING)
        if kind is _BYTES and type(body) is bytes:
            return unchecked_message(kind, body, _NOTHING)
    faults: list[str] = []
    fit_body = checked_body(kind, body, item_types, faults)
    fit_properties = checked_properties(properties, property_types, faults)
    if headers or property_types or item_types:
        message = JmsMessage(
            body_kind=kind,
            body=fit_body,
            properties=fit_properties,
            property_types=MappingProxyType(dict(property_types)) if property_types else _NOTHING,
            item_types=MappingProxyType[Any, ItemType]({**item_types}) if item_types else _NOTHING,
            **checked_headers(headers, faults),
        )
    else:
        message = unchecked_message(kind, fit_body, fit_properties)
    if faults:
        raise ConfigurationError(faults)
    return message


# Properties that may differ between deliveries of a message, so its identity leaves them out.
_OF_A_DELIVERY = frozenset(
    {
        "JMSXDeliveryCount",
        "JMSXRcvTimestamp",
        "JMSXState",
        "JMSXConsumerTXID",
        "x-delivery-count",
        "x-acquired-count",
    }
)
_tuple = tuple.__new__


class Identity(NamedTuple):
    """Identity of a message, returned by `identity`; valid within one process only.

    Attributes:
        message_id: The id set by the broker or the producer.
        destination: Destination from which the message came; `None` if only messages of one destination are
            compared.
        timestamp: Time of sending, in milliseconds since the epoch.
        digest: Hash of body and properties.
    """

    message_id: str
    destination: Destination | str | None
    timestamp: int | None
    digest: int


def identity(
    message_id: str | None,
    destination: Destination | str | None,
    timestamp: int | None,
    body: object,
    properties: Mapping[str, object],
) -> Identity | None:
    """Return the identity of a message; `None` without an id."""
    if message_id is None:
        return None
    said = body if isinstance(body, (str, bytes)) else repr(body)
    if properties:
        if not _OF_A_DELIVERY.isdisjoint(properties):
            properties = {name: properties[name] for name in properties if name not in _OF_A_DELIVERY}
        return Identity(message_id, destination, timestamp, hash((said, frozenset(properties.items()))))
    return Identity(message_id, destination, timestamp, hash(said))


def identity_of(message: JmsMessage | None, destination: Destination | None) -> Identity | None:
    """Return the identity of a message; `None` without an id or a message.

    Args:
        message: The message as received, or as published.
        destination: Destination from which the message came, if messages of several destinations are
            compared.
    """
    if message is None:
        return None
    message_id, body, properties = message.message_id, message.body, message.properties
    plain = not properties or _OF_A_DELIVERY.isdisjoint(properties)
    if plain and message_id is not None and body.__class__ is str:
        # The same result as `identity`, but faster: a listener computes it for every settled message.
        digest = hash((body, frozenset(properties.items()))) if properties else hash(body)
        return _tuple(Identity, (message_id, destination, message.timestamp, digest))
    return identity(message_id, destination, message.timestamp, body, properties)


def stable_digest(message: JmsMessage, destination: Destination) -> str | None:
    """Return an identity that is equal in every process and on every delivery; `None` without an id.

    Args:
        message: The message as received.
        destination: Destination from which the message came.
    """
    return None if message.message_id is None else _digest(str(destination), message)


def with_stable_id(message: JmsMessage, message_id_fallback: str) -> JmsMessage:
    """Return the message with an id that is the same on every delivery.

    A message without an id gets a generated one.

    Args:
        message: The message as received.
        message_id_fallback: The option of that name. `digest` computes the id from the whole message, so
            equal messages get the same id. `property:name` uses a property; a message without it gets no id.
    """
    if message.message_id is not None:
        return message
    kind, _, name = message_id_fallback.partition(":")
    if kind == "digest":
        return replace(message, message_id=f"digest={_digest('', message)}")
    value = message.properties.get(name)
    return message if value is None or value == "" else replace(message, message_id=f"{name}={value}")


# Memory of a property besides its characters: two strings and a dictionary entry.
_OF_A_PROPERTY = 120


def size_of(message: JmsMessage) -> int:
    """Return the approximate memory use of a message in bytes: body, properties, sender-defined headers."""
    # Called for every received message, so the common types are measured without a further call.
    body, reply_to = message.body, message.reply_to
    size = len(body) if isinstance(body, (str, bytes)) else _size(body)
    if message.correlation_id is not None:
        size += len(message.correlation_id)
    if message.type is not None:
        size += len(message.type)
    if reply_to is not None:
        size += len(reply_to.name)
    for name, value in message.properties.items():
        size += _OF_A_PROPERTY + len(name) + (len(value) if isinstance(value, str) else _size(value))
    return size


def _size(value: Any) -> int:
    match value:
        case None:
            return 0
        case str() | bytes():
            return len(value)
        case Mapping():
            return sum(len(str(name)) + _size(each) for name, each in value.items())
        case Sequence():
            return sum(_size(each) for each in value)
        case _:
            return 8


def _digest(destination: str, message: JmsMessage) -> str:
    content: dict[str, Any] = to_json(message)
    del content["redelivered"], content["delivery_count"]
    properties = content["properties"]
    content["properties"] = {name: properties[name] for name in properties if name not in _OF_A_DELIVERY}
    text = json.dumps([destination, content], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
