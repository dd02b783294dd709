"""Messages in a form that people can read."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from airflow_provider_jmsjca.core.message import BodyKind, JmsMessage

_BYTES_PER_LINE: Final = 16
_PRINTABLE: Final = range(0x20, 0x7F)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageView:
    """A message with headers, properties and body in a form that people can read.

    Attributes:
        headers: JMS headers by name, as text; headers without a value are left out.
        properties: User properties by name, each as a pair of value and Java type.
        body_kind: Kind of the body.
        body_form: The form of `body`: `text`, `json` or `hex`.
        body: The body as text, indented JSON, or a hexadecimal dump.
        body_bytes: Length of the body in bytes.
        body_cut: Whether `body` shows only the beginning of the body.
    """

    headers: Mapping[str, str]
    properties: Mapping[str, tuple[str, str]]
    body_kind: BodyKind
    body_form: str
    body: str
    body_bytes: int
    body_cut: bool = False


def moment(milliseconds: int | None) -> str:
    """Return a JMS timestamp as ISO 8601 in UTC.

    Args:
        milliseconds: Milliseconds since the epoch; 0 or `None` gives an empty text.

    Returns:
        The number itself if it is outside the years 1 to 9999.
    """
    if not milliseconds:
        return ""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(milliseconds)


def message_view(message: JmsMessage, *, limit: int | None = None) -> MessageView:
    """Return a message with headers, properties and body in a form that people can read.

    Args:
        message: The message.
        limit: Maximum length of the body, in bytes, or in characters for a text or JSON; the rest is left
            out. `None`: no limit.
    """
    headers = {
        "message id": message.message_id,
        "destination": message.destination,
        "sent": moment(message.timestamp),
        "expires": moment(message.expiration),
        "correlation id": message.correlation_id,
        "reply to": message.reply_to,
        "type": message.type,
        "priority": message.priority,
        "persistent": message.persistent,
        "redelivered": message.redelivered,
        "delivery count": message.delivery_count,
    }
    form, body, size, is_cut = _body(message, limit)
    return MessageView(
        headers={name: str(value) for name, value in headers.items() if value not in {None, ""}},
        properties={
            name: (str(value), str(message.property_types.get(name) or _java_type(value)))
            for name, value in message.properties.items()
        },
        body_kind=message.body_kind,
        body_form=form,
        body=body,
        body_bytes=size,
        body_cut=is_cut,
    )


def body_preview(message: JmsMessage, characters: int = 60) -> str:
    """Return the beginning of a body on one line of at most `characters` characters."""
    match message.body:
        case bytes(data):
            try:
                text = data.decode()
            except UnicodeDecodeError:
                text = data[: characters // 2 + 1].hex()
        case str(text):
            pass
        case _:
            text = _body(message, None)[1]
    line = " ".join(text[: 4 * characters].split())
    return line if len(line) <= characters else line[: characters - 3] + "..."


def _body(message: JmsMessage, limit: int | None) -> tuple[str, str, int, bool]:
    """Return form and text of a body, its length in bytes, and whether it was cut."""
    body = message.body
    if body is None:
        return "text", "", 0, False
    if isinstance(body, bytes):
        is_cut = limit is not None and len(body) > limit
        try:
            # An incomplete character at the end is left out.
            text = codecs.getincrementaldecoder("utf-8")().decode(body[:limit], final=not is_cut)
        except UnicodeDecodeError:
            return "hex", hex_dump(body[:limit]), len(body), is_cut
        return (*_text(text, is_cut=is_cut), len(body), is_cut)
    if isinstance(body, str):
        is_cut = limit is not None and len(body) > limit
        return (*_text(body[:limit], is_cut=is_cut), len(body.encode("utf-8", "surrogatepass")), is_cut)
    text = json.dumps(message.to_json()["body"], indent=2, ensure_ascii=False)
    return "json", text[:limit], len(text.encode()), limit is not None and len(text) > limit


def _text(text: str, *, is_cut: bool) -> tuple[str, str]:
    """Return form and text of a body; JSON is indented only if that changes no name and no number."""
    if not is_cut and text.lstrip()[:1] in {"{", "["}:
        try:
            value = json.loads(
                text, object_pairs_hook=_object, parse_float=_same(float), parse_int=_same(int)
            )
            return "json", json.dumps(value, indent=2, ensure_ascii=False)
        except (ValueError, RecursionError):
            return "text", text
    return "text", text


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is there twice")
    return found


def _same(kind: type[int | float]) -> Callable[[str], int | float]:
    """Return a parser of numbers that refuses a number if Python would write it differently."""

    def parse(text: str) -> int | float:
        number = kind(text)
        if repr(number) != text:
            raise ValueError(f"{text} would be shown as {number!r}")
        return number

    return parse


def hex_dump(data: bytes) -> str:
    """Return bytes as lines of offset, hexadecimal digits and printable ASCII."""
    lines = []
    for at in range(0, len(data), _BYTES_PER_LINE):
        some = data[at : at + _BYTES_PER_LINE]
        shown = "".join(chr(each) if each in _PRINTABLE else "." for each in some)
        lines.append(f"{at:08x}  {some.hex(' '):<{3 * _BYTES_PER_LINE}} {shown}")
    return "\n".join(lines)


def _java_type(value: object) -> str:
    match value:
        case bool():
            return "boolean"
        case int():
            return "int" if -(2**31) <= value < 2**31 else "long"
        case float():
            return "double"
        case _:
            return "string"
