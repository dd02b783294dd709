"""The copy of a message that the broker keeps until it is due.

Source: J128-J130; P18.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from airflow_provider_jmsjca.core.message import JmsMessage, PropertyValue
from airflow_provider_jmsjca.errors import PoisonMessageError

PARKED_COUNT = "_JMSJCA_ParkedRedeliveryCount"
PARKED_ID = "_JMSJCA_ParkedJMSMessageID"
PARKED_EXPIRATION = "_JMSJCA_ParkedJMSExpiration"


def parked_copy(message: JmsMessage, seen: int) -> JmsMessage:
    """Return the copy that the broker delivers later.

    The copy does not expire before it is due, just as an in-flight message does not expire.

    Args:
        message: The message as received.
        seen: Number of deliveries with the redelivered flag.
    """
    properties = dict(message.properties)
    properties.pop(PARKED_ID, None)  # it may be forged
    properties[PARKED_COUNT] = seen
    if message.message_id is not None:
        properties[PARKED_ID] = message.message_id
    if message.expiration:
        properties[PARKED_EXPIRATION] = message.expiration
    return replace(
        message,
        properties=MappingProxyType(properties),
        message_id=None,
        destination=None,
        timestamp=None,
        expiration=0,
        redelivered=False,
        delivery_count=None,
    )


def unparked(message: JmsMessage) -> tuple[JmsMessage, int | None]:
    """Return the original of a received copy, and the redelivery count that the copy carries.

    The original has the message id and the expiry from before it was parked.

    Returns:
        The original and its redelivery count. If the received message isn't a `parked_copy`: the same
        message, and `None`.

    Raises:
        PoisonMessageError: The redelivery count or the expiry is not a number.
    """
    if PARKED_COUNT not in message.properties:
        return message, None
    properties = dict(message.properties)
    given = properties.pop(PARKED_COUNT)
    own_id = properties.pop(PARKED_ID, None)
    expiration = _number(PARKED_EXPIRATION, properties.pop(PARKED_EXPIRATION, message.expiration))
    original = replace(
        message,
        properties=MappingProxyType(properties),
        message_id=message.message_id if own_id is None else str(own_id),
        expiration=expiration,
    )
    return original, _number(PARKED_COUNT, given)


def _number(name: str, given: PropertyValue) -> int:
    try:
        return int(given)  # type: ignore[arg-type]  # other types are caught
    except (TypeError, ValueError, OverflowError) as error:
        raise PoisonMessageError(f"property {name} holds {given!r}, not a number") from error
