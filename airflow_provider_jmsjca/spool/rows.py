"""Converts messages to rows of segments, and rows to messages.

Many messages are converted at a time, to keep the work for each message small.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import (
    DEFAULT_PRIORITY,
    Body,
    BodyKind,
    ItemType,
    ItemValue,
    JmsMessage,
    PropertyType,
    PropertyValue,
)
from airflow_provider_jmsjca.core.message.message import Identity
from airflow_provider_jmsjca.core.message.value_types import inferred_type
from airflow_provider_jmsjca.errors import SpoolError
from airflow_provider_jmsjca.spool.arrow import layout, pa
from airflow_provider_jmsjca.spool.files import open_file
from airflow_provider_jmsjca.spool.known_ids import table_identities
from airflow_provider_jmsjca.spool.manifest import Manifest
from airflow_provider_jmsjca.spool.schema import ITEM_TYPE_PREFIX, REASON_PROPERTY, UNDECODABLE


def encode_body(message: JmsMessage) -> bytes | None:
    """Return the bytes of a message's body.

    Raises:
        TypeError: The body's type is none of those that messages have.
        ValueError: An item can't be written as JSON.
    """
    body = message.body
    if isinstance(body, str):
        return body.encode("utf-8", "surrogatepass")
    if isinstance(body, bytes) or body is None:
        return body
    items: object
    if isinstance(body, Mapping):
        items = {name: _json_item(value) for name, value in body.items()}
    elif isinstance(body, Sequence):
        items = [_json_item(value) for value in body]
    else:
        raise TypeError(f"a {message.body_kind} body can't be a {type(body).__name__}")
    return json.dumps(items, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _json_item(value: ItemValue) -> object:
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode("ascii")}
    if isinstance(value, float) and not math.isfinite(value):
        return {"double": "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}
    return value


def decode_body(kind: BodyKind, data: bytes | None) -> Body:
    """Return the body that `encode_body` wrote: a `dict` for map, a `tuple` for stream.

    Raises:
        SpoolError: `encode_body` writes no such bytes for this kind.
    """
    try:
        match kind, data:
            case BodyKind.EMPTY, None:
                return None
            case BodyKind.TEXT, bytes():
                return data.decode("utf-8", "surrogatepass")
            case ((BodyKind.BYTES | BodyKind.OBJECT), bytes()):
                return data
            case BodyKind.MAP, bytes():
                return {name: _item(value) for name, value in json.loads(data).items()}
            case BodyKind.STREAM, bytes():
                return tuple(_item(value) for value in json.loads(data))
    except (ValueError, AttributeError, TypeError, KeyError) as error:
        raise SpoolError(f"a {kind} body can't be read back: {error}") from error
    raise SpoolError(f"a {kind} body can't be {'NULL' if data is None else 'other than NULL'}")


def _item(value: object) -> ItemValue:
    if isinstance(value, dict):
        return base64.b64decode(value["base64"]) if "base64" in value else float(value["double"])
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"expected an item, found {type(value).__name__}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    """A message read from a segment.

    Attributes:
        message: The message as received. If it is undecodable: the received bytes and the readable headers.
        segment: Number of its segment, from 0.
        position: The message's row in the segment, from 0.
        undecodable: Why the message could not be decoded; `None` for a decoded message.
    """

    message: JmsMessage
    segment: int
    position: int
    undecodable: str | None


def table_to_messages(table: pa.Table) -> Iterator[StoredMessage]:
    """Yield the messages of a table of `layout.MESSAGE_SCHEMA`, in its order.

    Raises:
        SpoolError: A row has a body type or a body that this package doesn't write.
    """
    # Times are cast to milliseconds as integers, because conversion to Python's datetime would be slower.
    for name in ("timestamp", "expiration"):
        index = table.schema.get_field_index(name)
        table = table.set_column(index, name, table.column(name).cast(pa.int64()))
    for batch in table.drop_columns(["received_at"]).to_batches():
        for row in batch.to_pylist():
            yield _stored(row)


def manifest_messages(manifest: Manifest) -> Iterator[StoredMessage]:
    """Yield the messages of a finished batch in the order they were received.

    Raises:
        SpoolError: A segment is missing or damaged. All segments are checked before the first message.
    """
    manifest.verify()
    for path in manifest.segment_paths():
        try:
            with (
                open_file(path) as plain,
                layout.SegmentReader(plain) as file,
            ):
                for group in range(file.num_row_groups):
                    yield from table_to_messages(file.read_row_group(group))
        except (pa.ArrowException, OSError) as error:
            raise SpoolError(f"{path}: can't be read: {error}") from error


def _stored(row: dict[str, Any]) -> StoredMessage:
    properties = dict(row["properties"] or ())
    types = dict(row["property_types"] or ())
    undecodable = None
    if row["body_type"] == UNDECODABLE:
        kind = BodyKind.BYTES
        undecodable = properties.pop(REASON_PROPERTY, None) or "no reason was stored"
    else:
        kind = _known_kind(row)
    item_types: dict[Any, ItemType] = {}
    if kind in {BodyKind.MAP, BodyKind.STREAM}:
        for name in [name for name in types if name.startswith(ITEM_TYPE_PREFIX)]:
            item = name.removeprefix(ITEM_TYPE_PREFIX)
            item_types[int(item) if kind is BodyKind.STREAM else item] = ItemType(types.pop(name))
    values = {name: _value(value, types.get(name)) for name, value in properties.items()}
    message = JmsMessage(
        body_kind=kind,
        body=decode_body(kind, row["body"]),
        properties=values,
        property_types={
            name: PropertyType(kind) for name, kind in types.items() if inferred_type(values[name]) != kind
        },
        item_types=item_types,
        message_id=row["message_id"],
        correlation_id=row["correlation_id"],
        reply_to=_destination(row["reply_to"]),
        type=row["type"],
        destination=_destination(row["destination"]),
        timestamp=_milliseconds(row["timestamp"]),
        expiration=_milliseconds(row["expiration"]) or 0,
        priority=row["priority"],
        persistent=row["persistent"],
        redelivered=row["redelivered"],
        delivery_count=row["delivery_count"],
    )
    return StoredMessage(
        message=message, segment=row["segment"], position=row["position"], undecodable=undecodable
    )


def _known_kind(row: dict[str, Any]) -> BodyKind:
    try:
        return BodyKind(row["body_type"])
    except ValueError:
        raise SpoolError(
            f"segment {row['segment']} position {row['position']}: body_type {row['body_type']!r}, expected "
            f"one of {', '.join(BodyKind)}, {UNDECODABLE}"
        ) from None


def _value(text: str | None, kind: str | None) -> PropertyValue:
    if text is None or kind is None or kind == PropertyType.STRING:
        return text
    if kind == PropertyType.BOOLEAN:
        return text == "true"
    return float(text) if kind in {PropertyType.FLOAT, PropertyType.DOUBLE} else int(text)


def _destination(text: str | None) -> Destination | None:
    return None if text is None else Destination.from_header(text)


def _milliseconds(microseconds: int | None) -> int | None:
    return None if microseconds is None else microseconds // 1000


_LARGEST_INT = 2**31 - 1
_LARGEST_BYTE = 127
_FIRST_MILLISECOND, _LAST_MILLISECOND = -62_135_596_800_000, 253_402_300_799_999
_UNFIT = (OverflowError, ValueError, TypeError)


class Row(NamedTuple):
    """A message to be stored as a row; a tuple, because each message needs one and tuples are fast.

    Attributes:
        message: The message. If it is undecodable: the received bytes and the valid headers.
        received_at: Time of receipt in microseconds since the epoch.
        undecodable: Why the message can't be represented; `None` if it can.
    """

    message: JmsMessage
    received_at: int
    undecodable: str | None = None


def rows_to_table(rows: Sequence[Row], batch_id: str, segment: int, first: int = 0) -> pa.Table:
    """Return the rows as a table of `layout.MESSAGE_SCHEMA`, in their order.

    A message that doesn't fit the schema becomes an `undecodable` row with the reason. So it isn't lost and
    doesn't block other messages. Examples: half a surrogate pair in a header, a year past 9999, a priority of
    1000.

    Args:
        rows: The rows of the table.
        batch_id: Value of the column `batch_id`.
        segment: Value of the column `segment`.
        first: Position of the first row in its segment.
    """
    try:
        return _table(rows, batch_id, segment, first)
    except (*_UNFIT, pa.ArrowException):
        return _table([_fitting(row, batch_id, segment) for row in rows], batch_id, segment, first)


def _fitting(row: Row, batch_id: str, segment: int) -> Row:
    try:
        _table([row], batch_id, segment, 0)
    except (*_UNFIT, pa.ArrowException) as error:
        reason = f"{type(error).__name__}: {error}".encode(errors="replace").decode()
        return Row(message=_salvaged(row.message), received_at=row.received_at, undecodable=reason)
    return row


def _salvaged(message: JmsMessage) -> JmsMessage:
    """Return the message with its body as bytes, and only the headers that the schema can hold."""

    def clean(text: str | None) -> str | None:
        return None if text is None else text.encode("utf-8", "replace").decode()

    def place(destination: Destination | None) -> Destination | None:
        return None if destination is None else Destination(destination.kind, clean(destination.name) or "?")

    return JmsMessage(
        body_kind=BodyKind.BYTES,
        body=raw_body(message),
        properties={
            clean(name) or "": clean(value if isinstance(value, str) else repr(value))
            for name, value in message.properties.items()
        },
        message_id=clean(message.message_id),
        correlation_id=clean(message.correlation_id),
        reply_to=place(message.reply_to),
        type=clean(message.type),
        destination=place(message.destination),
        timestamp=message.timestamp if _is_instant(message.timestamp) else None,
        expiration=message.expiration if _is_instant(message.expiration) else 0,
        priority=message.priority if 0 <= message.priority <= _LARGEST_BYTE else DEFAULT_PRIORITY,
        persistent=bool(message.persistent),
        redelivered=bool(message.redelivered),
        delivery_count=message.delivery_count if 0 <= (message.delivery_count or 0) <= _LARGEST_INT else None,
    )


def _is_instant(milliseconds: int | None) -> bool:
    return milliseconds is None or _FIRST_MILLISECOND <= milliseconds <= _LAST_MILLISECOND


def raw_body(message: JmsMessage) -> bytes:
    """Return the bytes of a message's body, or of its `repr` if the body can't be encoded."""
    try:
        return encode_body(message) or b""
    except (*_UNFIT, pa.ArrowException):
        return repr(message.body).encode("utf-8", "backslashreplace")


def row_identity(row: Row) -> Identity | None:
    """Return the identity that `known_ids.read_identities` would read for this row from a segment.

    `None` for a message without an id.
    """
    return next(table_identities(rows_to_table([row], "", 0)), None)


def _table(rows: Sequence[Row], batch_id: str, segment: int, first: int) -> pa.Table:
    messages = [row.message for row in rows]
    count = len(rows)
    properties, property_types = _property_columns(rows)
    columns = [
        pa.array([m.message_id for m in messages], pa.string()),
        _texts(m.destination for m in messages),
        pa.array([m.correlation_id for m in messages], pa.string()),
        _texts(m.reply_to for m in messages),
        pa.array([m.type for m in messages], pa.string()),
        _instants(m.timestamp for m in messages),
        _instants(m.expiration or None for m in messages),
        pa.array([row.received_at for row in rows], pa.int64()).cast(layout.TIMESTAMP),
        pa.array([m.priority for m in messages], pa.int8()),
        pa.array([m.persistent for m in messages], pa.bool_()),
        pa.array([m.redelivered for m in messages], pa.bool_()),
        pa.array([m.delivery_count for m in messages], pa.int32()),
        pa.array([_group_id(m) for m in messages], pa.string()),
        pa.array([_group_sequence(m) for m in messages], pa.int32()),
        pa.array([UNDECODABLE if row.undecodable else row.message.body_kind for row in rows], pa.string()),
        pa.array([encode_body(m) for m in messages], pa.binary()),
        pa.array([_content_type(m) for m in messages], pa.string()),
        properties,
        property_types,
        pa.repeat(pa.scalar(batch_id, pa.string()), count),
        pa.repeat(pa.scalar(segment, pa.int32()), count),
        pa.array(range(first, first + count), pa.int32()),
    ]
    return pa.Table.from_arrays(columns, schema=layout.MESSAGE_SCHEMA)


def _instants(milliseconds: Iterable[int | None]) -> pa.Array:
    values = list(milliseconds)
    for value in values:
        if not _is_instant(value):
            raise ValueError(f"{value} ms since the epoch is not within the years 1 to 9999")
    return pa.array([None if value is None else value * 1000 for value in values], pa.int64()).cast(
        layout.TIMESTAMP
    )


def _texts(destinations: Iterable[Destination | None]) -> pa.Array:
    spelled: dict[Destination | None, str | None] = {None: None}
    texts = []
    for destination in destinations:
        if destination not in spelled:
            spelled[destination] = str(destination)
        texts.append(spelled[destination])
    return pa.array(texts, pa.string())


def _group_id(message: JmsMessage) -> str | None:
    value = message.properties.get("JMSXGroupID")
    return value if value is None else str(value)


def _group_sequence(message: JmsMessage) -> int | None:
    """Return the sequence number of the group; `None` if the property isn't a valid one."""
    value = message.properties.get("JMSXGroupSeq")
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST_INT:
        return value
    return None


def _content_type(message: JmsMessage) -> str | None:
    value = message.properties.get("content-type")
    return value if isinstance(value, str) else None


def _property_columns(rows: Sequence[Row]) -> tuple[pa.Array, pa.Array]:
    names: list[str] = []
    values: list[str | None] = []
    ends = [0]
    typed: list[str] = []
    types: list[str] = []
    type_ends = [0]
    for row in rows:
        message = row.message
        declared = message.property_types
        for name, value in message.properties.items():
            names.append(name)
            if type(value) is str and not declared:
                values.append(value)
                continue
            values.append(_spelled(value))
            kind = declared.get(name) or inferred_type(value)
            if kind is None and value is not None:
                raise ValueError(f"property {name!r} holds {value!r}, which no JMS type can")
            if kind is not None and (kind != "string" or value is None):
                typed.append(name)
                types.append(str(kind))
        for item, kind in message.item_types.items():
            typed.append(f"{ITEM_TYPE_PREFIX}{item}")
            types.append(str(kind))
        if row.undecodable is not None:
            names.append(REASON_PROPERTY)
            values.append(row.undecodable)
        ends.append(len(names))
        type_ends.append(len(typed))
    return _text_map(ends, names, values), _text_map(type_ends, typed, types)


def _spelled(value: bool | float | str | None) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value)


def _text_map(ends: list[int], names: list[str], values: Sequence[str | None]) -> pa.Array:
    return pa.MapArray.from_arrays(
        pa.array(ends, pa.int32()),
        pa.array(names, pa.string()),
        pa.array(values, pa.string()),
        type=layout.TEXT_MAP,
    )
