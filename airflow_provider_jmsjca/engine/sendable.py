"""Refuses messages that a broker can't take as they are."""

from __future__ import annotations

from airflow_provider_jmsjca.errors import CapabilityError
from airflow_provider_jmsjca.transports.base import Connection, Outgoing


def check_sendable(connection: Connection, outgoing: Outgoing) -> None:
    """Refuse a delay, a deduplication id or a kind of body that the broker doesn't have.

    Raises:
        CapabilityError: It is such a message.
    """
    capabilities = connection.capabilities
    if outgoing.delay:
        capabilities.require(connection.broker, "delayed_delivery", purpose="a delay")
    if outgoing.deduplication_id is not None:
        capabilities.require(connection.broker, "deduplicating_send", purpose="a deduplication id")
    if outgoing.message.body_kind not in capabilities.body_kinds:
        raise CapabilityError(
            f"a message with a {outgoing.message.body_kind} body can't be sent to {connection.broker}:"
            " the body would not survive"
        )
