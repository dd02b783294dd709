"""Room for the machines of one activation: places for units of work, and a limit of messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


class ConcurrencyLimit:
    """Room for the machines of one activation: places for units of work, and a limit of messages.

    Machines without a permit wait in a queue, so that one with a long backlog can't starve the others.
    Not thread-safe: the caller serialises.

    Args:
        places: Units of work at once, all machines together.
        limit: No more messages than this are settled or under way; `None`: no limit.

    Source: W2, W4.
    """

    def __init__(self, places: int, limit: int | None = None) -> None:
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
        self._shares.append(share)
        return share

    def admit(self, share: Permits, *, unit: bool, message: bool) -> bool:
        """Count something of the share as under way, if there is room for it."""
        share.refused = not self._admit(share, unit=unit, message=message)
        return not share.refused

    def _admit(self, share: Permits, *, unit: bool, message: bool) -> bool:
        if self._limit is not None:
            # Waiting messages count, but more of them may have come than there are permits.
            waiting = 0 if message else sum(each.waiting for each in self._shares)
            if self._messages() - waiting >= self._limit:
                return False
        if unit:
            free = self._places - sum(each.units for each in self._shares)
            if share not in self._waiting:
                self._waiting.append(share)
            if self._waiting.index(share) >= free:
                return False
            self._waiting.remove(share)
        share.units += unit
        share.taken += message
        share.waiting -= not message
        return True

    def report(self, share: Permits, *, units: int, taken: int, settled: int, waiting: int) -> bool:
        """Set the current use, and return whether it fell."""
        less = units < share.units or taken < share.taken
        share.units, share.taken, share.settled, share.waiting = units, taken, settled, waiting
        if less:
            self._wake(but=share)
        return less

    def withdraw(self, share: Permits) -> None:
        """Take the share out of the queue for places."""
        if share in self._waiting:
            self._waiting.remove(share)
            self._wake(but=share)

    def _messages(self) -> int:
        return sum(each.taken + each.settled for each in self._shares)

    def _wake(self, but: Permits) -> None:
        for each in self._shares:
            if each.refused and each is not but:
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
        return self.room.admit(self, unit=unit, message=message)

    def report(self, *, units: int, taken: int, settled: int, waiting: int = 0) -> bool:
        """Report the current use; return whether it fell."""
        return self.room.report(self, units=units, taken=taken, settled=settled, waiting=waiting)

    def withdraw(self) -> None:
        """Report that there is nothing to take, so that other machines get the permits."""
        self.room.withdraw(self)
