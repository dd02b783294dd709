"""Ways in which brokers settle messages, take them back, and offer administration."""

from __future__ import annotations

import enum


class Recovery(enum.Enum):
    """How a consumer's unsettled messages go back, when it rolls back and when it closes."""

    RESUBSCRIBE = enum.auto()
    """UNSUBSCRIBE and SUBSCRIBE again. The server takes unsettled messages back at UNSUBSCRIBE."""
    NEGATIVE_ACKNOWLEDGE = enum.auto()
    """NACK each. The server takes a NACK also after the UNSUBSCRIBE of the message's subscription."""
    HAND_BACK = enum.auto()
    """UNSUBSCRIBE, NACK each, SUBSCRIBE. The server keeps messages at UNSUBSCRIBE, until their NACK."""
    LOCAL = enum.auto()
    """The consumer gets them again from our own memory. The server would drop them at UNSUBSCRIBE."""
    DISCONNECT = enum.auto()
    """The connection is closed, at which every server takes back what it held."""


class UnitKind(enum.Enum):
    """What a unit of work is made of."""

    TRANSACTION = enum.auto()
    """The broker's transaction; acknowledgements and sends take effect together."""
    CONFIRM_THEN_ACKNOWLEDGE = enum.auto()
    """Confirmed sends first, then the acknowledgements."""


class Cumulative(enum.Enum):
    """What `ack:client` acknowledges besides the message that is named."""

    UNUSED = enum.auto()
    """Not known, or no faster."""
    SUBSCRIPTION = enum.auto()
    """What came before it, of its subscription."""
    CONNECTION = enum.auto()
    """What came before it, over the connection."""


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
