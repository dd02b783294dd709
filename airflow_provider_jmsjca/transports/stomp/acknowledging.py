"""Acknowledgements: their frames, and when one may count for many messages."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, assert_never

from airflow_provider_jmsjca.transports.base import Subscription
from airflow_provider_jmsjca.transports.stomp.dialects.settlement import Cumulative, Recovery

if TYPE_CHECKING:
    from airflow_provider_jmsjca.transports.stomp.connection import StompConnection


class Claim(enum.Enum):
    """What became of a message that a unit of work asked for."""

    NONE = enum.auto()  # it isn't there to be had
    DONE = enum.auto()  # reserved, and acknowledged if that goes message by message
    LATE = enum.auto()  # reserved; the unit acknowledges it together with its COMMIT


def may_accumulate(connection: StompConnection, subscription: Subscription) -> bool:
    """Say whether one frame may acknowledge many of a new consumer's messages."""
    if not subscription.in_order:
        return False
    match connection.dialect.cumulative:
        case Cumulative.UNUSED:
            return False
        case Cumulative.SUBSCRIPTION:
            return True
        case Cumulative.CONNECTION:
            recovery = connection.dialect.recovery(subscription)
            return (
                subscription.alone
                and recovery is not Recovery.NEGATIVE_ACKNOWLEDGE
                and connection.routes.take_alone()
            )
        case _ as other:
            assert_never(other)


def bytes_of(token: object) -> bytes:
    """Return a token as it stands on the wire."""
    return token if isinstance(token, bytes) else b""


def ack(token: object, headers: bytes = b"") -> bytes:
    """Return an ACK frame."""
    # The id goes back as it came, escapes and all.
    return b"ACK\nid:%b\n%b\n\0" % (bytes_of(token), headers)


def nack(token: bytes, headers: bytes = b"") -> bytes:
    """Return a NACK frame."""
    return b"NACK\nid:%b\n%b\n\0" % (token, headers)
