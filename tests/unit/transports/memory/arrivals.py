"""What a consumer of a unit test has received."""

from __future__ import annotations

import threading

from airflow_provider_jmsjca.transports.base import Received


class Arrivals:
    """Callback that keeps what it gets."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self._changed = threading.Condition()

    def __call__(self, received: Received) -> None:
        with self._changed:
            self.received.append(received)
            self._changed.notify_all()

    def wait(self, count: int) -> list[Received]:
        """Return all of them, once there are so many."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.received) >= count, 5)
            return list(self.received)

    def bodies(self, count: int) -> list[object]:
        """Return all bodies, once there are so many."""
        return [item.message.body for item in self.wait(count)]
