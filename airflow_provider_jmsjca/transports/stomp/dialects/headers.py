"""Names of headers, and how properties become headers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from airflow_provider_jmsjca.core.message import PropertyValue
from airflow_provider_jmsjca.transports.stomp.dialects.values import BODY_KIND

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


def header_value(value: PropertyValue) -> str:
    """Return a property as it stands in a header."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
