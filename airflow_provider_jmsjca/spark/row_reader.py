"""Rows of a segment back to messages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import (
    BodyKind,
    ItemType,
    JmsMessage,
    PropertyType,
    PropertyValue,
)
from airflow_provider_jmsjca.core.value_types import inferred_type
from airflow_provider_jmsjca.errors import SpoolError
from airflow_provider_jmsjca.spark.bodies import decode_body
from airflow_provider_jmsjca.spark.schema import ITEM_TYPE_PREFIX, REASON_PROPERTY, UNDECODABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    """One row.

    Attributes:
        message: As it was received; of an undecodable one the bytes that came and what could be read.
        segment: Number of its segment, from 0.
        position: Its row in the segment, from 0.
        undecodable: Why it could not be decoded; `None` for a sound one.
    """

    message: JmsMessage
    segment: int
    position: int
    undecodable: str | None


def table_to_messages(table: pa.Table) -> Iterator[StoredMessage]:
    """Yield the messages of a table of `MESSAGE_SCHEMA`, in its order.

    Raises:
        SpoolError: A row is none that this package writes.
    """
    # Instants as numbers: Python's datetime would be slower, and this keeps to milliseconds.
    for name in ("timestamp", "expiration"):
        index = table.schema.get_field_index(name)
        table = table.set_column(index, name, table.column(name).cast(pa.int64()))
    for batch in table.drop_columns(["received_at"]).to_batches():
        for row in batch.to_pylist():
            yield _stored(row)


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
