"""The messages in hand that no unit of work has taken yet, and what keeps some of them from being taken."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain

from airflow_provider_jmsjca.core.delivery.turns import Turns
from airflow_provider_jmsjca.core.delivery.units import InHand, Unit


class Line:
    """First come, first taken, except that some must wait for a unit to end.

    A message group belongs to the unit that has taken one of its messages. A message that came back after its
    connection was lost waits while its old handler call still runs.

    Several destinations stand in a line each, and take turns. What was put back is taken before any of them,
    without a turn of its own: its destination has had it.

    Args:
        destinations: How many there are.
        quantity: Most messages of each in a cycle of turns (I4).
    """

    def __init__(self, destinations: int = 1, quantity: int = 1) -> None:
        self._front: deque[InHand] = deque()
        self._lines: tuple[deque[InHand], ...] = tuple(deque() for _ in range(destinations))
        self._turns = Turns(destinations, quantity) if destinations > 1 else None
        self._claims: dict[tuple[str, str], int] = {}

    def __len__(self) -> int:
        if self._turns is None:
            return len(self._front) + len(self._lines[0])
        return len(self._front) + sum(map(len, self._lines))

    def __iter__(self) -> Iterator[InHand]:
        """Yield every message that waits."""
        return chain(self._front, *self._lines)

    def append(self, message: InHand) -> None:
        """Put a message at the end of its line; one that is in progress has had its turn."""
        (self._front if message.in_progress else self._lines[message.source]).append(message)

    def push_front(self, messages: Iterable[InHand]) -> None:
        """Put messages back in front, in their order."""
        self._front.extendleft(reversed(list(messages)))

    def clear(self) -> None:
        """Let go of all messages."""
        self._front.clear()
        for line in self._lines:
            line.clear()

    @property
    def in_front(self) -> int:
        """How many messages are taken before those whose turn it is."""
        return len(self._front)

    def take(self, number: int | None) -> InHand | None:
        """Remove and return the first message that this unit may take; `None` for a unit yet to be."""
        if self._front and (message := self._take_from(self._front, number)) is not None:
            return message
        if self._turns is None:
            return self._take_from(self._lines[0], number)
        source = self._turns.take(lambda each: self._find(self._lines[each], number) is not None)
        return None if source is None else self._take_from(self._lines[source], number)

    def offers_front(self, number: int | None) -> bool:
        """Say whether this unit may take a message without asking for a turn."""
        return self._find(self._front, number) is not None

    def offers_turn(self, number: int | None) -> bool:
        """Say whether a destination has a message that this unit may take."""
        return any(self._find(line, number) is not None for line in self._lines)

    def _take_from(self, line: deque[InHand], number: int | None) -> InHand | None:
        index = self._find(line, number)
        if index is None:
            return None
        message = line[index]
        del line[index]
        return message

    def _find(self, line: deque[InHand], number: int | None) -> int | None:
        for index, message in enumerate(line):
            if not self._claims or (
                self._claims.get(("message", message.key), number) == number
                and (message.group is None or self._claims.get(("group", message.group), number) == number)
            ):
                return index
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
