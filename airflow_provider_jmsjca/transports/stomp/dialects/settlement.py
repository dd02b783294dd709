"""Ways in which brokers settle messages, take them back, and offer administration."""

from __future__ import annotations

import enum


class Recovery(enum.Enum):
    """The way in which a consumer hands unsettled messages back to the broker, on rollback and on close."""

    RESUBSCRIBE = enum.auto()
    """UNSUBSCRIBE and SUBSCRIBE again. The server requeues unsettled messages at UNSUBSCRIBE."""
    NEGATIVE_ACKNOWLEDGE = enum.auto()
    """NACK each. The server accepts a NACK even after the UNSUBSCRIBE of the message's subscription."""
    HAND_BACK = enum.auto()
    """UNSUBSCRIBE, NACK each, SUBSCRIBE. The server keeps messages unsettled from UNSUBSCRIBE to NACK."""
    LOCAL = enum.auto()
    """Redeliver from the client's memory. The server would drop the messages at UNSUBSCRIBE."""
    DISCONNECT = enum.auto()
    """Close the connection. Every server then requeues its unsettled messages."""


class UnitKind(enum.Enum):
    """The implementation of units of work on a broker."""

    TRANSACTION = enum.auto()
    """A broker transaction; acknowledgements and sends take effect together."""
    CONFIRM_THEN_ACKNOWLEDGE = enum.auto()
    """Confirmed sends first, then the acknowledgements."""


class Cumulative(enum.Enum):
    """The further messages that an ACK settles with `ack:client`, besides the named message."""

    UNUSED = enum.auto()
    """Unknown, or not faster than individual acknowledgements."""
    SUBSCRIPTION = enum.auto()
    """All earlier messages of its subscription."""
    CONNECTION = enum.auto()
    """All earlier messages of the connection."""


class AdministrationKind(enum.Enum):
    """The interface through which a broker offers statistics, browsing and changes of messages."""

    NONE = enum.auto()
    """No known interface."""
    STATISTICS_PLUGIN = enum.auto()
    """ActiveMQ Classic's statistics plugin for figures; consumers with a selector for everything else."""
    MANAGEMENT_ADDRESS = enum.auto()
    """Artemis' management address."""
    HTTP_API = enum.auto()
    """RabbitMQ's management plugin, at the connection's `management_url`."""
