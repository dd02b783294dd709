"""A stop request that also comes by itself when a deadline passes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_TICK_SECONDS = 0.1


class Patience(threading.Event):
    """An event that counts as set when another one is, or when time is up; for code that waits on an event.

    Args:
        stop: The other event.
        deadline: On the clock, in seconds; `None` means never.
        clock: Returns seconds, monotonic.
    """

    def __init__(
        self,
        stop: threading.Event,
        deadline: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._stop = stop
        self._deadline = deadline
        self._clock = clock

    def expired(self) -> bool:
        """Tell whether the deadline has passed."""
        return self._deadline is not None and self._clock() >= self._deadline

    def is_set(self) -> bool:
        """Tell whether to stop."""
        return super().is_set() or self._stop.is_set() or self.expired()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is time to stop, or for so many seconds; tell which (`True` to stop)."""
        end = None if timeout is None else self._clock() + timeout
        while not self.is_set():
            left = _TICK_SECONDS if end is None else min(_TICK_SECONDS, end - self._clock())
            if left <= 0:
                return False
            self._stop.wait(left)
        return True
