"""The JSON form of messages, for XCom, asset events and stores: stable, plain, and exact on the way back.

```
{"version": 1, "body_kind": "text", "body": "hello",
 "properties": {"region": "eu"}, "property_types": {}, "item_types": {},
 "message_id": "ID:1", "correlation_id": null, "reply_to": "queue://answers", "type": null,
 "destination": null, "timestamp": null, "expiration": 0, "priority": 4, "persistent": true,
 "redelivered": false, "delivery_count": null}
```

What JSON, or a database's JSON column, can't hold is an object of one key: `{"base64": "AP8="}` for bytes,
`{"number": "NaN"}` (or `Infinity`, `-Infinity`), and `{"utf8": "AA=="}` (base64 of UTF-8) for text with a
NUL or a lone surrogate. A map whose names need that, and
`item_types` beside it, is a list of pairs.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.core.message_checks import (
    HIGHEST_RECEIVED_PRIORITY,
    header_expectation,
    shortened,
)
from airflow_provider_jmsjca.core.value_types import BodyKind, ItemType, PropertyType
from airflow_provider_jmsjca.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow_provider_jmsjca.core.message import JmsMessage

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
    """Return the arguments of the `JmsMessage` whose JSON form is given. Missing headers have their defaults.

    Raises:
        ConfigurationError: It isn't the JSON form of a message; every fault with its place.
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
