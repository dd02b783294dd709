"""What has been handed on and awaits its outcome, recognised by message id when the broker repeats it."""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")

REMEMBERED = 5000
"""Ids kept after they were settled. Source: J129, whose cache has this size."""


class Arrival(enum.Enum):
    """What to do with a delivery.

    Attributes:
        NEW: Hand it on.
        REPEATED: It has been handed on already and awaits its outcome; nothing to do now.
        SETTLED: It was settled before, which the broker doesn't know: acknowledge it again.
        HELD: It stays unsettled, because nobody may have it; nothing to do.
    """

    NEW = enum.auto()
    REPEATED = enum.auto()
    SETTLED = enum.auto()
    HELD = enum.auto()


class InFlight(Generic[T]):
    """Deliveries by message id, from their arrival to their outcome.

    The newest delivery of a message replaces the older one, which is stale. What is unsettled is bounded by
    the prefetch; ids of settled messages are remembered up to `limit`, the oldest are forgotten first.
    """

    def __init__(self, limit: int = REMEMBERED) -> None:
        self._limit = limit
        self._pending: dict[Hashable, T] = {}
        self._held: dict[Hashable, T] = {}
        self._settled: OrderedDict[Hashable, None] = OrderedDict()

    @property
    def pending(self) -> int:
        """How many await their outcome."""
        return len(self._pending)

    @property
    def held(self) -> int:
        """How many stay unsettled."""
        return len(self._held)

    def arrived(self, key: Hashable, delivery: T) -> Arrival:
        """Note a delivery and return what to do with it."""
        if key in self._pending:
            self._pending[key] = delivery
            return Arrival.REPEATED
        if key in self._held:
            self._held[key] = delivery
            return Arrival.HELD
        if key in self._settled:
            self._settled.move_to_end(key)
            return Arrival.SETTLED
        self._pending[key] = delivery
        return Arrival.NEW

    def settle(self, key: Hashable) -> T | None:
        """Note that it was handed on for good; return its newest delivery, which is to be acknowledged."""
        delivery = self._pending.pop(key, None)
        self._settled[key] = None
        while len(self._settled) > self._limit:
            self._settled.popitem(last=False)
        return delivery

    def hold(self, key: Hashable) -> None:
        """Keep it unsettled from now on."""
        if key in self._pending:
            self._held[key] = self._pending.pop(key)

    def forget(self, key: Hashable) -> None:
        """Treat its next delivery as new."""
        self._pending.pop(key, None)

    def newest(self, key: Hashable) -> T | None:
        """Return the newest delivery of what awaits its outcome."""
        return self._pending.get(key)
