"""Duplicate event elimination: which messages a listener has handled already."""

from __future__ import annotations

from collections import OrderedDict

from airflow_provider_jmsjca.transports.base import Received

REMEMBERED = 32_768
"""Ids of handled messages that are known; the adapter itself knew one."""


class Duplicates:
    """Knows messages by their ids: those a handler has done with, and those in hand.

    One that was handled is a duplicate. One that comes while another of its id is in hand waits for what
    becomes of that one. What was moved or deleted counts as not handled, so that it may be put back into its
    queue. A message without an id is never a duplicate. Not safe to use from several threads at once.

    Args:
        remembered: How many handled messages are known; the oldest are forgotten first.

    Source: I15, I17.
    """

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._remembered = remembered
        self._handled: OrderedDict[str, None] = OrderedDict()
        self._waiting: dict[str, list[Received]] = {}
        self._intake: object = None

    def is_handled(self, message_id: str | None) -> bool:
        """Say whether a message is the duplicate of one that was handled."""
        return message_id in self._handled

    def has_to_wait(self, intake: object, message_id: str | None, received: Received) -> bool:
        """Say whether another message of this id is in hand; if not, this one is from now on.

        Args:
            intake: What it came with. With the next one, all that was in hand is not, and comes again.
            message_id: Its id.
            received: It.
        """
        if intake is not self._intake:
            self._intake = intake
            self._waiting.clear()
        if message_id is None:
            return False
        waiting = self._waiting.get(message_id)
        if waiting is None:
            self._waiting[message_id] = []
            return False
        waiting.append(received)
        return True

    def out_of_hand(self, intake: object, message_id: str | None, *, handled: bool) -> list[Received]:
        """Note what became of a message; return those of its intake that waited for it."""
        if message_id is None:
            return []
        if handled:
            self._handled[message_id] = None
            if len(self._handled) > self._remembered:
                self._handled.popitem(last=False)
        return self._waiting.pop(message_id, []) if intake is self._intake else []
