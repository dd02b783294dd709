"""Limits that the delivery machines of one activation share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass


class ConcurrencyLimit:
    """Limits units of work and messages over all delivery machines of one activation.

    Machines without a permit wait in a queue, so that a machine with a long backlog can't starve the others.

    Args:
        places: Maximum number of concurrent units of work, over all machines.
        limit: Maximum number of messages that were settled since the start or are in progress; `None`: no
            limit.
        lock: Held during each call; `None`: the caller serializes all calls.

    Attributes:
        lock: The lock that is held during each call.

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
        """Add a machine, and return its permits.

        Args:
            wake: Called when permits may be available after a refusal. It must not block.
        """
        share = Permits(room=self, wake=wake)
        with self.lock:
            self._shares.append(share)
        return share

    def allows(self, share: Permits, *, unit: bool, message: bool) -> bool:
        """Return whether the limits allow what a machine requests.

        A machine that gets no unit of work is put into the queue of waiting machines.

        Args:
            share: The machine's permits.
            unit: Whether the machine requests another unit of work.
            message: Whether the request adds a message to those in progress; `False`: it takes one of those
                in `Permits.waiting`, which are in progress already.
        """
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
        """Remove a machine from the queue of waiting machines; `Permits.withdraw` calls this."""
        if share in self._waiting:
            self._waiting.remove(share)
            self.wake_others(share)

    def wake_others(self, share: Permits) -> None:
        """Wake all other machines whose last request was refused."""
        for each in self._shares:
            if each.refused and each is not share:
                each.refused = False
                each.wake()


@dataclass(slots=True, eq=False)
class Permits:
    """Permits of one machine, which requests a permit before it takes a pending message.

    Attributes:
        room: The limit from which the permits come.
        wake: Called when permits may be available after a refusal.
        units: Number of units of work in progress.
        taken: Number of messages in these units, or in transit through the in-progress queue.
        settled: Number of messages settled since the start.
        waiting: Number of taken messages that are in no unit: in transit through the in-progress queue, or
            received from it and pending.
        refused: Whether the last request was refused, and `wake` was not called since then.
    """

    room: ConcurrencyLimit
    wake: Callable[[], object]
    units: int = 0
    taken: int = 0
    settled: int = 0
    waiting: int = 0
    refused: bool = False

    def admit(self, *, unit: bool, message: bool = True) -> bool:
        """Count a unit or a message as in progress, if the limit allows it; return whether it does.

        Args:
            unit: Whether a unit of work begins.
            message: Whether this adds a message to those in progress; `False`: it is one of those in
                `waiting`.
        """
        with self.room.lock:
            self.refused = not self.room.allows(self, unit=unit, message=message)
            if not self.refused:
                self.units += unit
                self.taken += message
                self.waiting -= not message
            return not self.refused

    def report(self, *, units: int, taken: int, settled: int, waiting: int = 0) -> bool:
        """Store the machine's current numbers; if permits became free, wake the machines that were refused.

        Args:
            units: Number of units of work in progress.
            taken: Number of messages in progress.
            settled: Number of messages settled since the start.
            waiting: Number of messages in progress that are in no unit.

        Returns:
            Whether fewer units or messages are in progress than at the last report.
        """
        with self.room.lock:
            less = units < self.units or taken < self.taken
            self.units, self.taken, self.settled, self.waiting = units, taken, settled, waiting
            if less:
                self.room.wake_others(self)
            return less

    def withdraw(self) -> None:
        """Report that no message is pending, so that other machines get the permits."""
        with self.room.lock:
            self.room.withdraw(self)
