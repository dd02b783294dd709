"""A message that the broker keeps until it is due: how its copy says what it is.

Source: J128-J130; P18.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.errors import PoisonMessageError

PARKED_COUNT = "_JMSJCA_ParkedRedeliveryCount"
PARKED_ID = "_JMSJCA_ParkedJMSMessageID"


def parked_copy(message: JmsMessage, seen: int) -> JmsMessage:
    """Return what is sent to come back later.

    Args:
        message: As received.
        seen: How often it was seen with the redelivered flag.
    """
    properties = dict(message.properties)
    properties[PARKED_COUNT] = seen
    if message.message_id is not None:
        properties[PARKED_ID] = message.message_id
    return replace(
        message,
        properties=MappingProxyType(properties),
        message_id=None,
        destination=None,
        timestamp=None,
        redelivered=False,
        delivery_count=None,
    )


def unparked(message: JmsMessage) -> tuple[JmsMessage, int | None]:
    """Return a received message with its own id, and the count it was parked with.

    Returns:
        The message as it is and `None` if it was never parked.

    Raises:
        PoisonMessageError: The count is no number.
    """
    if PARKED_COUNT not in message.properties:
        return message, None
    properties = dict(message.properties)
    given = properties.pop(PARKED_COUNT)
    own_id = properties.pop(PARKED_ID, None)
    try:
        seen = int(given)  # type: ignore[arg-type]  # what it can't take is caught
    except (TypeError, ValueError, OverflowError) as error:
        raise PoisonMessageError(f"property {PARKED_COUNT} holds {given!r}, not a number") from error
    message_id = message.message_id if own_id is None else str(own_id)
    return replace(message, properties=MappingProxyType(properties), message_id=message_id), seen
