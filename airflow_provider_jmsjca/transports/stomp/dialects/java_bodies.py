"""Bodies that only Java clients send.

These are maps, which ActiveMQ converts to XML, and messages that RabbitMQ's JMS client has serialized.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from airflow_provider_jmsjca.core.message import BodyKind, ItemType, ItemValue, JmsMessage
from airflow_provider_jmsjca.core.message.value_types import INTEGER_BITS, fits_in

TRANSFORMATION: Final = "transformation"
"""Header of SUBSCRIBE that requests Java maps as text from ActiveMQ, and of the resulting messages."""
MAPS_AS_XML: Final = "jms-map-xml"
"""The only transformation that preserves types: JSON would turn the text "12" into a number."""

_EMPTY_MAP: Final = "<map/>"
_START: Final = "<map>"
_END: Final = "\n</map>"
# The exact output of the broker's XStream. No other text is a map, so untrusted text reaches no XML parser.
_ENTRY: Final = re.compile(
    r"\n  <entry>\n    <string>(?P<name>[^<]+)</string>\n"
    r"    (?:<null/>|<(?P<tag>[a-z-]{3,10})>(?P<value>[^<]*)</(?P=tag)>)\n  </entry>"
)
_REFERENCE: Final = re.compile(r"&(?:(lt|gt|amp|quot|apos)|#x([0-9a-f]{1,6}));|&")
_NAMED: Final = {"lt": "<", "gt": ">", "amp": "&", "quot": '"', "apos": "'"}
_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")
_FLOAT: Final = re.compile(r"-?(?:[0-9]{1,400}\.[0-9]{1,400}(?:E-?[0-9]{1,3})?|Infinity)|NaN")
_RABBITMQ: Final = b"\xac\xed\x00\x05"
_RABBITMQ_CLASSES: Final = b"com.rabbitmq.jms.client.message."
_CLASS_WITHIN: Final = 48


def with_map(message: JmsMessage) -> JmsMessage:
    """Convert a text message that contains a Java map as XML into a map message.

    ActiveMQ sends such text if the subscription requests it. The body of any other message stays unchanged.
    The header that the broker adds is removed from the properties.
    """
    properties = {name: value for name, value in message.properties.items() if name != TRANSFORMATION}
    message = replace(message, properties=MappingProxyType(properties))
    body = message.body
    found = _map(body) if isinstance(body, str) and body.startswith(("<map>", _EMPTY_MAP)) else None
    if found is None:
        return message
    items, types = found
    return replace(
        message,
        body_kind=BodyKind.MAP,
        body=MappingProxyType(items),
        item_types=MappingProxyType(types),
    )


def is_of_rabbitmq_client(body: bytes) -> bool:
    """Return whether the body is a Java message serialized by RabbitMQ's JMS client."""
    return body.startswith(_RABBITMQ) and _RABBITMQ_CLASSES in body[:_CLASS_WITHIN]


def _map(text: str) -> tuple[dict[str, ItemValue], dict[str, ItemType]] | None:
    """Return the items, and the types that Python values don't imply; `None` for any other text."""
    items: dict[str, ItemValue] = {}
    types: dict[str, ItemType] = {}
    if text == _EMPTY_MAP:
        return items, types
    at, end = len(_START), len(text) - len(_END)
    if not text.endswith(_END):
        return None
    try:
        while at < end:
            entry = _ENTRY.match(text, at)
            if entry is None:
                return None
            name, tag = _plain(entry["name"]), entry["tag"]
            if name in items:
                return None
            items[name] = None if tag is None else _VALUES[tag](entry["value"])
            if tag in _DECLARED:
                types[name] = _DECLARED[tag]
            at = entry.end()
    except (KeyError, ValueError, OverflowError):
        return None
    return (items, types) if at == end else None


def _plain(text: str) -> str:
    if "&" not in text:
        return text

    def character(found: re.Match[str]) -> str:
        if found[0] == "&":
            raise ValueError("an ampersand that begins nothing")
        return _NAMED[found[1]] if found[1] else chr(int(found[2], 16))

    return _REFERENCE.sub(character, text)


def _integer(kind: str) -> Callable[[str], int]:
    bits = INTEGER_BITS[kind]

    def read(text: str) -> int:
        if _INTEGER.fullmatch(text) and fits_in(int(text), bits):
            return int(text)
        raise ValueError(f"no {kind}")

    return read


def _float(text: str) -> float:
    if _FLOAT.fullmatch(text):
        return float(text)
    raise ValueError("no number")


def _boolean(text: str) -> bool:
    return {"true": True, "false": False}[text]


def _char(text: str) -> str:
    found = _plain(text) or "\0"  # XStream writes NUL as an empty element
    if len(found) == 1 and found <= "\uffff":
        return found
    raise ValueError("no char")


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text.replace("\n", ""), validate=True)
    except binascii.Error as error:
        raise ValueError("no base64") from error


_VALUES: Final[Mapping[str, Callable[[str], ItemValue]]] = {
    "boolean": _boolean,
    "byte": _integer("byte"),
    "short": _integer("short"),
    "int": _integer("int"),
    "long": _integer("long"),
    "char": _char,
    "float": _float,
    "double": _float,
    "string": _plain,
    "byte-array": _bytes,
}
_DECLARED: Final[Mapping[str | None, ItemType]] = {
    kind: ItemType(kind) for kind in ("byte", "short", "char", "long", "float")
}
