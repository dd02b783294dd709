"""Messages: their values, allowed contents, and identity.

This folder may import `core.destination` and `errors`.
"""

from __future__ import annotations

from airflow_provider_jmsjca.core.message.message import (
    DEFAULT_PRIORITY,
    Body,
    BodyKind,
    ItemType,
    ItemValue,
    JmsMessage,
    PropertyType,
    PropertyValue,
    to_json,
    unchecked_message,
)

__all__ = [
    "DEFAULT_PRIORITY",
    "Body",
    "BodyKind",
    "ItemType",
    "ItemValue",
    "JmsMessage",
    "PropertyType",
    "PropertyValue",
    "to_json",
    "unchecked_message",
]
