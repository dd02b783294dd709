"""In which ways brokers have messages settled, and take them back."""

from __future__ import annotations

import enum


class Recovery(enum.Enum):
    """How a consumer's unsettled messages go back."""

    RESUBSCRIBE = enum.auto()
    """UNSUBSCRIBE and SUBSCRIBE again; the broker has them back after the first."""
    NEGATIVE_ACKNOWLEDGE = enum.auto()
    """NACK each."""
    HAND_BACK = enum.auto()
    """UNSUBSCRIBE, NACK each, SUBSCRIBE."""
    LOCAL = enum.auto()
    """The broker would drop them; they are handed to the consumer again from our own memory."""
    DISCONNECT = enum.auto()
    """Nothing is known but that every broker takes back what a closed connection held."""


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
