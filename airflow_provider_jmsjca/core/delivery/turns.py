"""Whose turn it is, among several destinations."""

from __future__ import annotations

from collections.abc import Callable


class Turns:
    """Round robin, one message a turn, in cycles.

    In a cycle a destination gives at most `quantity` messages; one that has nothing to give is passed over.
    The cycle is over when none can give any more, and the next one begins with the first destination.

    Args:
        destinations: How many there are, in the order of their turns.
        quantity: Most messages of each in a cycle.

    Attributes:
        cycle: Number of the cycle, from 0.

    Source: I4-I6, I51.
    """

    def __init__(self, destinations: int, quantity: int) -> None:
        self.cycle = 0
        self._quantity = quantity
        self._given = [0] * destinations
        self._next = 0

    def take(self, has_any: Callable[[int], bool]) -> int | None:
        """Give the turn to a destination and return which, by its place in the order.

        Args:
            has_any: Says whether a destination has a message to give.

        Returns:
            `None` if none has any; whose turn it is doesn't change then.
        """
        count = len(self._given)
        for step in range(count):
            candidate = (self._next + step) % count
            if self._given[candidate] < self._quantity and has_any(candidate):
                return self._turn_of(candidate)
        for candidate in range(count):
            if has_any(candidate):
                self.cycle += 1
                self._given = [0] * count
                return self._turn_of(candidate)
        return None

    def _turn_of(self, destination: int) -> int:
        self._given[destination] += 1
        self._next = (destination + 1) % len(self._given)
        return destination
