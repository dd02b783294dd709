"""A bound for something that many have at once."""

from __future__ import annotations

import threading


class Allowance:
    """Counts what was taken and not given back. Safe to use from several threads at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = 0

    def take(self, most: int) -> bool:
        """Take one, if fewer than `most` are taken; say whether."""
        with self._lock:
            if self._taken >= most:
                return False
            self._taken += 1
            return True

    def give_back(self, count: int) -> None:
        """Give back so many."""
        with self._lock:
            self._taken -= count
