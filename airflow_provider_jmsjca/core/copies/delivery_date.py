"""The message property with which Patch Bay delays a message. Source: P18."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.message.property_reader import java_integer
from airflow_provider_jmsjca.errors import ConfigurationError

DELIVERY_DATE: Final = "DELIVERY_DATE"
"""The property: milliseconds since 1970, before which the message isn't delivered."""

_LONG = 64
_SECOND = 1000


def time_left(message: JmsMessage, now: datetime) -> timedelta | None:
    """Return how long a message is to be held back; `None` if it says nothing, or its date has come.

    Args:
        message: To be sent.
        now: The time.

    Raises:
        ConfigurationError: The property holds no such number.
    """
    given = message.properties.get(DELIVERY_DATE)
    if given is None:
        return None
    milliseconds = java_integer(str(given), _LONG)
    try:
        date = None if milliseconds is None else datetime.fromtimestamp(milliseconds / _SECOND, UTC)
    except (ValueError, OverflowError, OSError):
        date = None
    if date is None:
        raise ConfigurationError(
            f"property {DELIVERY_DATE} holds {given!r}; expected milliseconds since 1970, or "
            "allow_message_delays off"
        )
    return date - now if date > now else None
