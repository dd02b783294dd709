"""The reason why a broker itself dead-lettered a message, read from properties that the broker added.

Sources: RabbitMQ documentation, "Dead Letter Exchanges"; ActiveMQ Classic, "Message Redelivery and DLQ
Handling"; Artemis user manual, "Undelivered Messages", "Message Expiry".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import PropertyValue

DEATHS: Final = "x-death"
"""Property with RabbitMQ's list of deaths as JSON, the last death first.

RabbitMQ's STOMP plugin does not deliver this property.
"""
_QUEUES_AND_REASONS: Final = (
    ("x-last-death-queue", "x-last-death-reason"),
    ("x-first-death-queue", "x-first-death-reason"),
)
_REASONS: Final = {
    "rejected": "a consumer rejected it",
    "expired": "it expired: its time to live or that of the queue was over",
    "maxlen": "the queue was full: x-max-length or x-max-length-bytes",
    "delivery_limit": "it was delivered too often: the delivery limit of the quorum queue",
}
_FAILURE_CAUSE: Final = "dlqDeliveryFailureCause"
_ORIGINAL_QUEUE: Final = "_AMQ_ORIG_QUEUE"
_EXPIRED_AT: Final = "_AMQ_ACTUAL_EXPIRY"
_LONGEST_NAME: Final = 255
_LONGEST_REASON: Final = 1_000
_LONGEST_TEXT: Final = 100_000
_MOST: Final = 100_000_000_000
"""Upper limit for counts and for seconds since the epoch; larger values are ignored."""

ADDED: Final = frozenset(
    {
        DEATHS,
        _FAILURE_CAUSE,
        "x-first-death-exchange",
        "x-last-death-exchange",
        *(name for pair in _QUEUES_AND_REASONS for name in pair),
    }
)
"""Properties with a broker's reason for moving a message. They are removed when the message is replayed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDeath:
    """The reason why a broker moved a message. A producer can forge all values.

    Attributes:
        queue: The queue from which the message was moved; `None` if the broker does not report it.
        reason: The reason as text.
        count: How often the message was moved from this queue for this reason; `None` if the broker does not
            report it.
        at: Time of the move in milliseconds since the epoch; `None` if the broker does not report it.
    """

    queue: Destination | None
    reason: str
    count: int | None = None
    at: int | None = None


def broker_death(properties: Mapping[str, PropertyValue]) -> BrokerDeath | None:
    """Return the reason of the last move of a message by a broker; `None` if no broker moved it."""
    for death in _deaths(properties.get(DEATHS)):
        return death
    for queue, reason in _QUEUES_AND_REASONS:
        if text := _text(properties.get(reason)):
            return BrokerDeath(queue=_queue(properties.get(queue)), reason=_REASONS.get(text, text))
    if cause := _text(properties.get(_FAILURE_CAUSE)):
        return BrokerDeath(queue=None, reason=cause)
    if queue_name := _queue(properties.get(_ORIGINAL_QUEUE)):
        expired = properties.get(_EXPIRED_AT) is not None
        reason = "it expired" if expired else "it was delivered too often: max-delivery-attempts"
        return BrokerDeath(queue=queue_name, reason=reason)
    return None


def _deaths(value: PropertyValue) -> Iterator[BrokerDeath]:
    """Yield the entries of RabbitMQ's `x-death` list, which is JSON text; nothing for any other value."""
    if not isinstance(value, str) or len(value) > _LONGEST_TEXT:
        return
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return
    for each in found if isinstance(found, list) else []:
        if isinstance(each, dict) and (reason := _text(each.get("reason"))):
            seconds = _number(each.get("time"))
            yield BrokerDeath(
                queue=_queue(each.get("queue")),
                reason=_REASONS.get(reason, reason),
                count=_number(each.get("count")),
                at=None if seconds is None else seconds * 1000,
            )


def _queue(value: Any) -> Destination | None:
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_NAME:
        return None
    return Destination.queue(value)


def _text(value: Any) -> str:
    return value.partition("\n")[0][:_LONGEST_REASON] if isinstance(value, str) else ""


def _number(value: Any) -> int | None:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and 0 < value < _MOST else None
