"""Messages on their way through the in-progress queue."""

from __future__ import annotations


class Staging:
    """Which messages were put into the in-progress queue and haven't come back from it yet.

    A copy may come back before the broker has confirmed that it was put there. Messages without an id can't
    be followed, and aren't counted.

    Source: I9.
    """

    def __init__(self) -> None:
        self._in_flight: set[str] = set()
        self._pending: set[str] = set()
        self._early: set[str] = set()

    def __len__(self) -> int:
        return len(self._in_flight)

    def begin(self, message_id: str | None) -> None:
        """A message is being put there."""
        if message_id is not None:
            self._pending.add(message_id)

    def end(self, message_id: str | None, *, done: bool) -> None:
        """That is confirmed, or has failed."""
        if message_id not in self._pending or message_id is None:
            return
        self._pending.discard(message_id)
        if message_id in self._early:
            self._early.discard(message_id)
        elif done:
            self._in_flight.add(message_id)

    def came(self, message_id: str | None) -> None:
        """A message has come from there."""
        if message_id in self._pending and message_id is not None:
            self._early.add(message_id)
        elif message_id is not None:
            self._in_flight.discard(message_id)

    def clear(self) -> None:
        """Nothing comes any more over this connection."""
        self._in_flight.clear()
        self._pending.clear()
        self._early.clear()
