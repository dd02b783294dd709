"""What a received message is to the machine."""

from __future__ import annotations

import logging

from airflow_provider_jmsjca.core.delivery.events import MessageArrived
from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.parking import unparked
from airflow_provider_jmsjca.engine.fates import Subscribes
from airflow_provider_jmsjca.errors import PoisonMessageError
from airflow_provider_jmsjca.transports.base import Received

_log = logging.getLogger("airflow_provider_jmsjca.listener")


def arrival(
    received: Received, number: int, source: int, subscribes: Subscribes | None
) -> tuple[MessageArrived, JmsMessage | None]:
    """Return what the machine is told, and the message as the handler gets it.

    Args:
        received: From the transport.
        number: Names it to the machine.
        source: Which of the destinations it came from.
        subscribes: Whether it is wanted; a message at which this raises is poison.

    Returns:
        The message is what can be kept of one that can't be decoded, or `None`.
    """
    message: JmsMessage | None = None
    try:
        message, parked = received.message, None
        if message.properties:
            message, parked = unparked(message)
        unsubscribed = subscribes is not None and not subscribes(message)
    except PoisonMessageError as error:
        return _poison(message or received.salvaged, number, source, error)
    except Exception as error:  # the user's function: whatever it raises
        if message is None:
            raise
        _log.exception("A message could not be asked whether it is wanted: it is poison")
        return _poison(message, number, source, error)
    group = message.properties.get("JMSXGroupID")
    event = MessageArrived(
        delivery=number,
        message_id=message.message_id,
        source=source,
        group=None if group is None else str(group),
        redelivered=message.redelivered,
        delivery_count=message.delivery_count,
        parked=parked,
        unsubscribed=unsubscribed,
    )
    return event, message


def _poison(
    message: JmsMessage | None, number: int, source: int, error: Exception
) -> tuple[MessageArrived, JmsMessage | None]:
    event = MessageArrived(
        delivery=number,
        message_id=None if message is None else message.message_id,
        source=source,
        undecodable=Failure.of(error),
    )
    return event, message
