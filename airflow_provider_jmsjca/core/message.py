"""JMS messages as values."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

from airflow_provider_jmsjca.core.destination import Destination

PropertyValue: TypeAlias = bool | int | float | str | None
ItemValue: TypeAlias = bool | int | float | str | bytes | None
Body: TypeAlias = str | bytes | Mapping[str, ItemValue] | Sequence[ItemValue] | None

DEFAULT_PRIORITY = 4
_NO_PROPERTIES: Mapping[str, PropertyValue] = MappingProxyType({})


class BodyKind(enum.StrEnum):
    """The six message types of JMS."""

    TEXT = "text"
    BYTES = "bytes"
    MAP = "map"
    STREAM = "stream"
    OBJECT = "object"
    EMPTY = "empty"


@dataclass(frozen=True, slots=True, kw_only=True)
class JmsMessage:
    """One message: a body of one of six kinds, headers and properties.

    Attributes:
        body_kind: Which of the six kinds the body is.
        body: `str` for text, `bytes` for bytes and object (serialized, opaque), a mapping for map, a
            sequence for stream, `None` for empty.
        properties: User properties by name.
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
    body: Body = None
    properties: Mapping[str, PropertyValue] = field(default_factory=lambda: _NO_PROPERTIES)
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
