"""Headers: their names, how properties, bodies and numbers become headers, and how headers are read."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, TypeAlias, overload

from airflow_provider_jmsjca.core.message import BodyKind, JmsMessage, PropertyValue
from airflow_provider_jmsjca.errors import PoisonMessageError

BODY_KIND: Final = "JMS_JMSJCA_BodyKind"
"""Header that says which kind a body is, sent only where the broker would lose it."""

TEXT: Final = BodyKind.TEXT
BYTES: Final = BodyKind.BYTES
EMPTY: Final = BodyKind.EMPTY
"""Names for what is asked of each message: to look up a member of an enum takes ten times as long."""

BODILESS: Final = "bodiless"
"""Option of a destination that says what a message without a body is, where the broker tells nobody."""
BODILESS_KINDS: Final[frozenset[str]] = frozenset({TEXT, EMPTY})

RENAMED: Final = "JMS_JMSJCA_Property_"
"""In front of the name of a property that would be taken for a header of STOMP or of the broker."""

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
"""Headers with a meaning of their own in one direction or the other."""

_LARGEST: Final = 2**63 - 1
_KINDS: Final[Mapping[str, BodyKind]] = {str(kind): kind for kind in BodyKind}


def header_value(value: PropertyValue) -> str:
    """Return a property as it stands in a header."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


@overload
def number(headers: Mapping[str, str], name: str, default: int) -> int: ...
@overload
def number(headers: Mapping[str, str], name: str, default: None) -> int | None: ...
def number(headers: Mapping[str, str], name: str, default: int | None) -> int | None:
    """Return a numeric header.

    Raises:
        PoisonMessageError: It is there and no number.
    """
    text = headers.get(name)
    return default if text is None else whole(name, text)


def whole(name: str, text: str) -> int:
    """Return the number that a header is: one that a Java `long` holds and that isn't negative.

    Raises:
        PoisonMessageError: It is none.
    """
    try:
        found = int(text)
    except ValueError:
        found = -1
    if 0 <= found <= _LARGEST:
        return found
    raise PoisonMessageError(f"the header {name!r} is no number from 0 to 2^63-1: {text[:40]!r}")


def decode_text(data: bytes) -> str:
    """Return text in plain UTF-8.

    Raises:
        PoisonMessageError: It isn't.
    """
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise PoisonMessageError(f"the text is not UTF-8: byte {error.start} is no part of it") from error


def no_body(headers: Mapping[str, str], product: str) -> tuple[BodyKind, str | None]:
    """Return what a message without a body is, if its sender was this package.

    Raises:
        PoisonMessageError: It was not. The broker may have left out the body; nothing says whether it did.
    """
    kind = marked_kind(headers)
    if kind is TEXT:
        return TEXT, ""
    if kind is EMPTY:
        return EMPTY, None
    raise PoisonMessageError(
        f"it came without a body: {product} leaves out that of a Java map, stream or object message over "
        "STOMP. Nothing tells these from an empty text or a message without body. Send text or bytes, or "
        f"give the destination the option {BODILESS}=text or {BODILESS}=empty if no such Java message comes"
    )


def text_of(message: JmsMessage) -> str:
    """Return the body of a text message; a missing one counts as empty."""
    return message.body if isinstance(message.body, str) else ""


def bytes_of(message: JmsMessage) -> bytes:
    """Return the body of a bytes message; a missing one counts as empty."""
    return message.body if isinstance(message.body, bytes) else b""


def marked_kind(headers: Mapping[str, str]) -> BodyKind | None:
    """Return the kind our own marker names, if the sender was this package."""
    return _KINDS.get(headers.get(BODY_KIND, ""))
