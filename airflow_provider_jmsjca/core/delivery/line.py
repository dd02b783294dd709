"""The messages in hand that no unit of work has taken yet, and what keeps some of them from being taken."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from airflow_provider_jmsjca.core.delivery.units import InHand, Unit


class Line:
    """First come, first taken, except that some must wait for a unit to end.

    A message group belongs to the unit that has taken one of its messages. A message that came back after its
    connection was lost waits while its old handler call still runs.
    """

    def __init__(self) -> None:
        self._messages: deque[InHand] = deque()
        self._claims: dict[tuple[str, str], int] = {}

    def __len__(self) -> int:
        return len(self._messages)

    def append(self, message: InHand) -> None:
        """Put a message at the end."""
        self._messages.append(message)

    def push_front(self, messages: Iterable[InHand]) -> None:
        """Put messages back in front, in their order."""
        self._messages.extendleft(reversed(list(messages)))

    def clear(self) -> None:
        """Let go of all messages."""
        self._messages.clear()

    def take(self, number: int | None) -> InHand | None:
        """Remove and return the first message that this unit may take; `None` for a unit yet to be."""
        for index, message in enumerate(self._messages):
            if not self._claims or (
                self._claims.get(("message", message.key), number) == number
                and (message.group is None or self._claims.get(("group", message.group), number) == number)
            ):
                del self._messages[index]
                return message
        return None

    def claim_group(self, unit: Unit, message: InHand) -> None:
        """Reserve the message's group, if it has one, for the unit."""
        if message.group is not None:
            self._claims["group", message.group] = unit.number

    def claim_messages(self, unit: Unit) -> None:
        """Reserve every message of the unit for it."""
        self._claims.update({("message", message.key): unit.number for message in unit.messages})

    def release(self, unit: Unit) -> None:
        """Give up what the unit reserved."""
        if self._claims:
            self._claims = {claim: owner for claim, owner in self._claims.items() if owner != unit.number}
