"""JMS messages as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, TypeAlias, TypedDict, Unpack

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message_checks import checked_body, checked_headers, checked_properties
from airflow_provider_jmsjca.core.message_json import Json, arguments_from_json, to_json
from airflow_provider_jmsjca.core.property_reader import PropertyReader
from airflow_provider_jmsjca.core.value_types import (
    BodyKind,
    ItemType,
    ItemValue,
    PropertyType,
    PropertyValue,
)
from airflow_provider_jmsjca.errors import ConfigurationError

__all__ = [
    "DEFAULT_PRIORITY",
    "Body",
    "BodyKind",
    "Headers",
    "ItemType",
    "ItemValue",
    "JmsMessage",
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


class Headers(TypedDict, total=False):
    """The headers that the constructors of `JmsMessage` take, as its attributes explain them."""

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

    The constructors named after the body kinds check what they are given and raise `ConfigurationError` with
    every fault. `JmsMessage(...)` itself checks nothing: transports build received messages with it.

    Attributes:
        body_kind: Which of the six kinds the body is.
        body: `str` for text, `bytes` for bytes and object (serialized, opaque), a mapping for map, a
            sequence for stream, `None` for empty.
        properties: User properties by name.
        property_types: The Java type of properties whose value doesn't say it: byte, short, float, and long
            for small numbers. The others are inferred: `bool` boolean, `int` int or long by its size,
            `float` double, `str` string.
        item_types: The same for the items of a map (by name) or stream (by index), where char is a type too.
        message_id: The provider's id, stable over redelivery; `None` before sending or if it has none.
        destination: Where it was sent to; set on received messages.
        timestamp: When it was sent, milliseconds since the epoch.
        expiration: When it expires, milliseconds since the epoch; 0 means never.
        priority: 0 (lowest) to 9.
        persistent: Whether it survives a restart of the broker.
        redelivered: Whether the broker says it was delivered before: a hint, not a proof.
        delivery_count: How often the broker delivered it, this time included; `None` where it doesn't say.

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
        **headers: Unpack[Headers],
    ) -> JmsMessage:
        """Return a text message.

        Args:
            body: The text.
            properties: User properties by name.
            property_types: Java types of properties, where inference wouldn't find them.
            **headers: `type`, `correlation_id`, `reply_to`, `priority`, `persistent` ... as attributes.

        Raises:
            ConfigurationError: What no JMS message can carry, every fault of it.
        """
        return _checked(BodyKind.TEXT, body, properties, property_types, _NOTHING, headers)

    @classmethod
    def bytes(
        cls,
        body: _Octets,
        properties: Mapping[str, PropertyValue] = _NOTHING,
        *,
        property_types: PropertyTypes = _NOTHING,
        **headers: Unpack[Headers],
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
        **headers: Unpack[Headers],
    ) -> JmsMessage:
        """Return a map message; arguments and errors are those of `text`.

        Args:
            body: Items by name.
            properties: User properties by name.
            property_types: Java types of properties, where inference wouldn't find them.
            item_types: Java types of items by name, where inference wouldn't find them.
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
        **headers: Unpack[Headers],
    ) -> JmsMessage:
        """Return a stream message; arguments and errors are those of `text`.

        Args:
            body: Items in their order.
            properties: User properties by name.
            property_types: Java types of properties, where inference wouldn't find them.
            item_types: Java types of items by index from 0, where inference wouldn't find them.
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
        **headers: Unpack[Headers],
    ) -> JmsMessage:
        """Return an object message around serialized bytes, which nobody here looks into.

        Arguments and errors are those of `text`.
        """
        return _checked(BodyKind.OBJECT, body, properties, property_types, _NOTHING, headers)

    @classmethod
    def empty(
        cls,
        properties: Mapping[str, PropertyValue] = _NOTHING,
        *,
        property_types: PropertyTypes = _NOTHING,
        **headers: Unpack[Headers],
    ) -> JmsMessage:
        """Return a message without body; arguments and errors are those of `text`."""
        return _checked(BodyKind.EMPTY, None, properties, property_types, _NOTHING, headers)

    def to_json(self) -> dict[str, Json]:
        """Return the JSON form, for XCom, events and stores; `core.message_json` describes it."""
        return to_json(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> JmsMessage:
        """Return the message that `to_json` was called on, exactly.

        Raises:
            ConfigurationError: It isn't the JSON form of a message; every fault with its place.
        """
        return cls(**arguments_from_json(data))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by plain dictionaries: read-only views can't be pickled."""
        values = {item.name: _plain(getattr(self, item.name)) for item in fields(self)}
        return _rebuild, (values,)


class _Open(PropertyReader):
    """A message while its fields are set."""

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
    """Return a message with its attributes in their order; the types are inferred, as on received messages.

    This is `JmsMessage(...)` in less than half of the time, which is spent a million times: an object is
    filled while its class lets it be, and frozen then.
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
    headers: Headers,
) -> JmsMessage:
    if not (properties or property_types or item_types or headers):  # nor is there much else to check
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
