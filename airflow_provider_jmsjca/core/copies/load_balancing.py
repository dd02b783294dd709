"""The copy of a message that was moved from a durable subscription to a queue, and its recorded origin.

Consumers of the queue see the message as it was published, with its original id, timestamp and topic. These
three values also identify duplicates.

Source: J204-J211.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from airflow_provider_jmsjca.core.copies.dead_letter import redirect_of
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage, PropertyValue
from airflow_provider_jmsjca.errors import ConfigurationError, PoisonMessageError

TOPIC = "_JMSJCA_PublishedJMSDestination"
MESSAGE_ID = "_JMSJCA_PublishedJMSMessageID"
TIMESTAMP = "_JMSJCA_PublishedJMSTimestamp"


def balanced_copy(message: JmsMessage, topic: Destination) -> JmsMessage:
    """Return the copy for the queue: unchanged body, headers and properties, with the origin added.

    The copy also keeps the expiry, because no consumer has handled the message yet.

    Args:
        message: The message as received from the topic.
        topic: The topic of the message, used if the message doesn't name its destination.
    """
    copy = redirect_of(replace(message, expiration=0))
    return with_origin(replace(copy, expiration=message.expiration), message, topic)


def with_origin(copy: JmsMessage, message: JmsMessage, otherwise: Destination) -> JmsMessage:
    """Return `copy` with additional properties: the destination, id and timestamp of `message`.

    Args:
        copy: The message to send.
        message: The message as received.
        otherwise: The destination of `message`, used if the message doesn't name it.
    """
    origin: dict[str, PropertyValue] = {
        TOPIC: str(message.destination or otherwise),
        MESSAGE_ID: message.message_id,
        TIMESTAMP: message.timestamp,
    }
    properties = {name: value for name, value in copy.properties.items() if name not in origin}
    properties |= {name: value for name, value in origin.items() if value is not None}
    return replace(copy, properties=MappingProxyType(properties))


def published(message: JmsMessage) -> JmsMessage:
    """Restore a message received from the queue to its published form; return any other message unchanged.

    Raises:
        PoisonMessageError: The origin recorded in the copy can't be read.
    """
    if TOPIC not in message.properties:
        return message
    properties = dict(message.properties)
    topic, own_id, sent = (properties.pop(name, None) for name in (TOPIC, MESSAGE_ID, TIMESTAMP))
    try:
        return replace(
            message,
            properties=MappingProxyType(properties),
            destination=Destination.parse(str(topic)),
            message_id=message.message_id if own_id is None else str(own_id),
            timestamp=message.timestamp if sent is None else int(sent),
        )
    except (ConfigurationError, ValueError, OverflowError) as error:
        raise PoisonMessageError(
            f"properties {TOPIC}, {TIMESTAMP} hold {topic!r}, {sent!r}: expected a destination and a number"
        ) from error
