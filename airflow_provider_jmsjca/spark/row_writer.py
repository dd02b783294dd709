"""Messages to rows of a segment, a whole segment at a time: the work per message must stay small."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import DEFAULT_PRIORITY, BodyKind, JmsMessage
from airflow_provider_jmsjca.core.value_types import inferred_type
from airflow_provider_jmsjca.spark.bodies import encode_body
from airflow_provider_jmsjca.spark.schema import (
    ITEM_TYPE_PREFIX,
    MESSAGE_SCHEMA,
    REASON_PROPERTY,
    TEXT_MAP,
    TIMESTAMP,
    UNDECODABLE,
)

_LARGEST_INT = 2**31 - 1
_LARGEST_BYTE = 127
_FIRST_MILLISECOND, _LAST_MILLISECOND = -62_135_596_800_000, 253_402_300_799_999
_UNFIT = (OverflowError, ValueError, TypeError, pa.ArrowException)


class Row(NamedTuple):
    """What becomes one row; a tuple, because one is made for every message.

    Attributes:
        received_at: Microseconds since the epoch.
        undecodable: Why the message can't be represented; `None` for a sound one. The body is then the bytes
            that came, and headers are kept as far as they are sound.
    """

    message: JmsMessage
    received_at: int
    undecodable: str | None = None


def rows_to_table(rows: Sequence[Row], batch_id: str, segment: int) -> pa.Table:
    """Return the rows as a table of `MESSAGE_SCHEMA`, in their order.

    A message that doesn't fit the schema (half a surrogate pair in a header, a year past 9999, a priority of
    1000) becomes an `undecodable` row with the reason, so that it can't hold up the others and isn't lost.
    """
    try:
        return _table(rows, batch_id, segment)
    except _UNFIT:
        return _table([_fitting(row, batch_id, segment) for row in rows], batch_id, segment)


def _fitting(row: Row, batch_id: str, segment: int) -> Row:
    try:
        _table([row], batch_id, segment)
    except _UNFIT as error:
        reason = f"{type(error).__name__}: {error}".encode(errors="replace").decode()
        return Row(message=_salvaged(row.message), received_at=row.received_at, undecodable=reason)
    return row


def _salvaged(message: JmsMessage) -> JmsMessage:
    """Keep the body as bytes, and of the headers what the schema can hold."""

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
    """Return what the column `body` holds of a message, also of one that the schema can't hold."""
    try:
        return encode_body(message) or b""
    except _UNFIT:
        return repr(message.body).encode("utf-8", "backslashreplace")


def _table(rows: Sequence[Row], batch_id: str, segment: int) -> pa.Table:
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
        pa.array([row.received_at for row in rows], pa.int64()).cast(TIMESTAMP),
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
        pa.array(range(count), pa.int32()),
    ]
    return pa.Table.from_arrays(columns, schema=MESSAGE_SCHEMA)


def _instants(milliseconds: Iterable[int | None]) -> pa.Array:
    values = list(milliseconds)
    for value in values:
        if not _is_instant(value):
            raise ValueError(f"{value} ms since the epoch is not within the years 1 to 9999")
    return pa.array([None if value is None else value * 1000 for value in values], pa.int64()).cast(TIMESTAMP)


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
    """The sequence number as a number; whatever else stands there is still among the properties."""
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
        pa.array(ends, pa.int32()), pa.array(names, pa.string()), pa.array(values, pa.string()), type=TEXT_MAP
    )
