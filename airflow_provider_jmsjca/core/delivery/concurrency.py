"""Room for the machines of one activation: places for units of work, and a limit of messages."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass


class ConcurrencyLimit:
    """Room for the machines of one activation: places for units of work, and a limit of messages.

    Machines without a permit wait in a queue, so that one with a long backlog can't starve the others.

    Args:
        places: Units of work at once, all machines together.
        limit: No more messages than this are settled or under way; `None`: no limit.
        lock: Held during each call; without one the caller serialises.

    Attributes:
        lock: As the argument.

    Source: W2, W4.
    """

    def __init__(
        self, places: int, limit: int | None = None, *, lock: AbstractContextManager[object] | None = None
    ) -> None:
        self.lock = nullcontext() if lock is None else lock
        self._places = places
        self._limit = limit
        self._shares: list[Permits] = []
        self._waiting: list[Permits] = []

    def join(self, wake: Callable[[], object]) -> Permits:
        """Let a machine in and return its share.

        Args:
            wake: Called when there may be room for it after it was refused; it must not block.
        """
        share = Permits(room=self, wake=wake)
        with self.lock:
            self._shares.append(share)
        return share

    def allows(self, share: Permits, *, unit: bool, message: bool) -> bool:
        """Return whether there is room for a unit or a message; until there is, the share waits for it."""
        if self._limit is not None:
            # Waiting messages count, but more of them may have come than there are permits.
            under_way = sum(each.taken + each.settled for each in self._shares)
            waiting = 0 if message else sum(each.waiting for each in self._shares)
            if under_way - waiting >= self._limit:
                return False
        if unit:
            free = self._places - sum(each.units for each in self._shares)
            if share not in self._waiting:
                self._waiting.append(share)
            if self._waiting.index(share) >= free:
                return False
            self._waiting.remove(share)
        return True

    def withdraw(self, share: Permits) -> None:
        """Take the share out of the queue for places; `Permits.withdraw` calls it."""
        if share in self._waiting:
            self._waiting.remove(share)
            self.wake_others(share)

    def wake_others(self, share: Permits) -> None:
        """Wake the other shares that were refused."""
        for each in self._shares:
            if each.refused and each is not share:
                each.refused = False
                each.wake()


@dataclass(slots=True, eq=False)
class Permits:
    """Permits of one machine, which requests one before it takes a pending message.

    Attributes:
        room: The limit from which the permits come.
        wake: Called when permits may be available after a refusal.
        units: Units of work under way.
        taken: Messages in them, and those on their way through the in-progress queue.
        settled: Messages settled since the start.
        waiting: How many of those taken are in no unit: they are on their way, or have come from there.
        refused: Whether it was refused last, and not woken since.
    """

    room: ConcurrencyLimit
    wake: Callable[[], object]
    units: int = 0
    taken: int = 0
    settled: int = 0
    waiting: int = 0
    refused: bool = False

    def admit(self, *, unit: bool, message: bool = True) -> bool:
        """Count a unit or a message as under way, if the limit allows it.

        Args:
            unit: A unit of work begins.
            message: A message is taken that isn't counted yet; otherwise a waiting one.
        """
        with self.room.lock:
            self.refused = not self.room.allows(self, unit=unit, message=message)
            if not self.refused:
                self.units += unit
                self.taken += message
                self.waiting -= not message
            return not self.refused

    def report(self, *, units: int, taken: int, settled: int, waiting: int = 0) -> bool:
        """Report the current use; return whether it fell."""
        with self.room.lock:
            less = units < self.units or taken < self.taken
            self.units, self.taken, self.settled, self.waiting = units, taken, settled, waiting
            if less:
                self.room.wake_others(self)
            return less

    def withdraw(self) -> None:
        """Report that there is nothing to take, so that other machines get the permits."""
        with self.room.lock:
            self.room.withdraw(self)
