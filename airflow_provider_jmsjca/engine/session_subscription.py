"""How a session subscribes: how much it lets the broker set aside, and in which order it settles."""

from __future__ import annotations

from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.core.destination_options import prefetch_of
from airflow_provider_jmsjca.engine.acknowledge_mode import AcknowledgeMode
from airflow_provider_jmsjca.transports.base import Subscription

# A topic's messages are the subscriber's own: nobody else misses them.
TOPIC_PREFETCH = 1000
# Sessions that wait for the broker after each message take one by one; the others would wait for messages.
UNSETTLED_PREFETCH = 100
# One acknowledgement at the end for more than that would stall ActiveMQ: it hands out 200 and waits for one.
MOST_IN_ORDER = 200
AT_ONCE = frozenset({AcknowledgeMode.AUTO, AcknowledgeMode.DUPS_OK})
"""Modes in which a message is settled when it is received."""


def session_subscription(
    mode: AcknowledgeMode,
    destination: Destination,
    selector: str | None,
    durable_name: str | None,
    prefetch: int | None,
) -> Subscription:
    """Return the subscription.

    Args:
        mode: When the session settles.
        destination: Where from; a prefetch among its options beats the session's.
        selector: What to select; `None` or empty: everything.
        durable_name: Name of a durable subscription.
        prefetch: The session's; `None` leaves it to the mode.
    """
    found = prefetch_of(destination) or prefetch
    if found is None and destination.kind is DestinationKind.TOPIC:
        found = TOPIC_PREFETCH
    elif found is None:
        found = 1 if mode is AcknowledgeMode.AUTO else UNSETTLED_PREFETCH
    if mode in AT_ONCE:
        # What can't be decoded stays, and it consumes anew then: a plain subscription would lose messages.
        in_order = destination.kind is DestinationKind.QUEUE or durable_name is not None
    else:
        in_order = found <= MOST_IN_ORDER
    return Subscription(
        destination=destination,
        selector=selector or None,
        durable_name=durable_name,
        prefetch=found,
        in_order=in_order,
    )
