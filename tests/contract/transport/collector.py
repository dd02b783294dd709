"""What a consumer of a test has received."""

from __future__ import annotations

import threading
from collections.abc import Callable

from airflow_provider_jmsjca import JmsMessage
from tests.internals.transports import Received

DEADLINE = 10.0
# Long enough for a message that must not come to have come.
QUIET = 0.25


class Collector:
    """Callback of a consumer that keeps what it gets.

    Args:
        then: Called with every message, on the connection's thread.
    """

    def __init__(self, then: Callable[[Received], None] | None = None) -> None:
        self.received: list[Received] = []
        self.threads: set[int] = set()
        self._then = then
        self._changed = threading.Condition()

    def __call__(self, received: Received) -> None:
        if self._then is not None:
            self._then(received)
        with self._changed:
            self.threads.add(threading.get_ident())
            self.received.append(received)
            self._changed.notify_all()

    def wait(self, count: int, deadline: float = DEADLINE) -> list[Received]:
        """Return the first so many, once they are there."""
        with self._changed:
            there = self._changed.wait_for(lambda: len(self.received) >= count, deadline)
        assert there, f"{len(self.received)} of {count} messages in {deadline} s: {self.bodies[:20]}"
        return self.received[:count]

    def settle_down(self, quiet: float = QUIET) -> list[Received]:
        """Return what is there when nothing has come for a while."""
        with self._changed:
            seen = -1
            while seen != len(self.received):
                seen = len(self.received)
                self._changed.wait_for(lambda seen=seen: len(self.received) != seen, quiet)
            return list(self.received)

    @property
    def messages(self) -> list[JmsMessage]:
        return [item.message for item in list(self.received)]

    @property
    def bodies(self) -> list[object]:
        return [message.body for message in self.messages]
