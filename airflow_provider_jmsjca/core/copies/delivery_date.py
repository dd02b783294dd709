"""Delivery time of an outgoing message, from the sender's arguments or the message property. Source: P18."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.message.property_reader import java_integer
from airflow_provider_jmsjca.core.quantities import LONGEST, number_of, seconds_faults
from airflow_provider_jmsjca.errors import ConfigurationError

DELIVERY_DATE: Final = "DELIVERY_DATE"
"""Property with the earliest delivery time of the message, in milliseconds since 1970."""

_LONG = 64
_SECOND = 1000


def chosen_delay(
    delay: float | str | None, deliver_at: datetime | str | None, now: datetime
) -> timedelta | None:
    """Return the delivery delay from either of the two arguments; `None` if neither is given.

    Args:
        delay: Seconds from now; `None` or empty text: not given.
        deliver_at: A time with a time zone, or its text; `None` or empty text: not given. A time in the past
            causes no delay.
        now: The current time.

    Raises:
        ConfigurationError: Both arguments are given, or one is invalid; the error lists every fault.
    """
    seconds = number_of(delay)
    faults = (
        [] if seconds is None else seconds_faults("delay", seconds, minimum=0, otherwise="None for no delay")
    )
    if not deliver_at:
        if faults:
            raise ConfigurationError(faults)
        return None if seconds is None else timedelta(seconds=seconds)
    if seconds is not None:
        faults.append("delay and deliver_at are both given; expected one of them")
    try:
        moment = deliver_at if isinstance(deliver_at, datetime) else datetime.fromisoformat(str(deliver_at))
    except ValueError:
        moment = None
    if moment is None or moment.utcoffset() is None:
        faults.append(
            f"deliver_at is {deliver_at!r}; expected a datetime with a time zone, or a text such as "
            "'2026-05-04T12:00:00+00:00'"
        )
    elif moment - now > LONGEST:
        faults.append(f"deliver_at is {deliver_at!r}; expected a time within the next {LONGEST.days} days")
    if faults or moment is None:
        raise ConfigurationError(faults)
    return max(timedelta(), moment - now)


def time_left(message: JmsMessage, now: datetime) -> timedelta | None:
    """Return the remaining delay until a message's delivery date.

    `None` if the message has no delivery date, or its date is past.

    Args:
        message: The message to send.
        now: The current time.

    Raises:
        ConfigurationError: The property is not a valid number of milliseconds.
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
