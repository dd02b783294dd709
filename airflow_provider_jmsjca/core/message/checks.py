"""Checks of the public constructors of `JmsMessage`; received messages are not checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message.identifiers import property_name_fault
from airflow_provider_jmsjca.core.message.value_types import (
    BodyKind,
    ItemType,
    ItemValue,
    PropertyType,
    PropertyValue,
    checked,
    surrogate_fault,
)

HIGHEST_PRIORITY = 9
"""Highest priority in JMS."""
HIGHEST_RECEIVED_PRIORITY = 255
"""Highest priority of RabbitMQ queues; messages from other clients may have it."""

_NO_PROPERTIES: Mapping[str, Any] = MappingProxyType({})
_PROPERTY_TYPES = frozenset(map(str, PropertyType))
_ITEM_TYPES = frozenset(map(str, ItemType))


def checked_properties(
    properties: Mapping[str, PropertyValue], types: Mapping[str, PropertyType], faults: list[str]
) -> Mapping[str, PropertyValue]:
    """Return the properties in the form to send, read-only; add every fault to `faults`."""
    if not properties and not types:
        return _NO_PROPERTIES
    result: dict[str, Any] = {}
    for name, value in properties.items():
        fault = property_name_fault(name)
        if fault:
            faults.append(fault)
            continue
        try:
            result[name] = checked(value, types.get(name), _PROPERTY_TYPES)
        except ValueError as error:
            faults.append(f"property {name!r}: value {shortened(value)}: {error}")
    faults.extend(
        f"property type for {name!r}: there is no such property" for name in types if name not in properties
    )
    return MappingProxyType(result)


def checked_body(
    kind: BodyKind, body: object, types: Mapping[str, ItemType] | Mapping[int, ItemType], faults: list[str]
) -> str | bytes | Mapping[str, ItemValue] | Sequence[ItemValue] | None:
    """Return the body in the form to send, read-only; add every fault to `faults`."""
    match kind, body:
        case BodyKind.TEXT, str():
            fault = surrogate_fault(body)
            if fault:
                faults.append(f"text body: {fault}")
            return body
        case ((BodyKind.BYTES | BodyKind.OBJECT), (bytes() | bytearray() | memoryview())):
            return bytes(body)
        case BodyKind.MAP, Mapping():
            faults.extend(
                f"map item {name!r}: expected a name that is text and not empty"
                for name in body
                if not isinstance(name, str) or not name
            )
            return MappingProxyType(_checked_items("map item", body, types, faults))
        case BodyKind.STREAM, Sequence() if not isinstance(body, (str, bytes, bytearray, memoryview)):
            return tuple(_checked_items("stream item", dict(enumerate(body)), types, faults).values())
        case BodyKind.EMPTY, _:
            return None
    expected = {
        BodyKind.TEXT: "str",
        BodyKind.BYTES: "bytes",
        BodyKind.OBJECT: "bytes (the serialized object)",
        BodyKind.MAP: "a mapping of names to values",
        BodyKind.STREAM: "a sequence of values",
    }[kind]
    faults.append(f"{kind} body: expected {expected}, not {type(body).__name__}")
    return None


def _checked_items(
    place: str, items: Mapping[Any, object], types: Mapping[Any, ItemType], faults: list[str]
) -> dict[Any, ItemValue]:
    result: dict[Any, ItemValue] = {}
    for key, value in items.items():
        plain = bytes(value) if isinstance(value, (bytearray, memoryview)) else value
        try:
            result[key] = checked(plain, types.get(key), _ITEM_TYPES)
        except ValueError as error:
            faults.append(f"{place} {key!r}: value {shortened(value)}: {error}")
    faults.extend(f"{place} type for {key!r}: there is no such item" for key in types if key not in items)
    return result


def checked_headers(headers: Mapping[str, Any], faults: list[str]) -> dict[str, Any]:
    """Return the headers unchanged; add every fault to `faults`."""
    for name, value in headers.items():
        expected = header_expectation(name, value)
        if expected:
            faults.append(f"header {name}: value {shortened(value)}: expected {expected}")
        elif isinstance(value, str) and (fault := surrogate_fault(value)):
            faults.append(f"header {name}: {fault}")
    return dict(headers)


def header_expectation(name: str, value: object, *, highest: int = HIGHEST_PRIORITY) -> str | None:
    """Return the expected form of a header; `None` if the value is valid."""
    number = isinstance(value, int) and not isinstance(value, bool)
    match name:
        case "priority":
            ok = number and 0 <= value <= highest  # type: ignore[operator]  # number says it is one
            return None if ok else f"0 (lowest) to {highest}"
        case "expiration":
            ok = number and value >= 0  # type: ignore[operator]  # as above
            return None if ok else "milliseconds since the epoch, or 0 for never"
        case "timestamp" | "delivery_count":
            ok = value is None or (number and value >= 0)  # type: ignore[operator]  # as above
            return None if ok else "a number that is not negative, or None"
        case "persistent" | "redelivered":
            return None if isinstance(value, bool) else "True or False"
        case "reply_to" | "destination":
            return None if value is None or isinstance(value, Destination) else "a Destination or None"
        case "type" | "correlation_id" | "message_id":
            return None if value is None or isinstance(value, str) else "text or None"
    raise TypeError(f"JmsMessage has no header {name!r}")


def shortened(value: object, limit: int = 60) -> str:
    """Return a value's repr, cut for an error message."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
