"""The messages in hand that no unit of work has taken yet, and when one is taken: turns, claims, room."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from airflow_provider_jmsjca.core.delivery.settings import DeliverySettings
from airflow_provider_jmsjca.core.delivery.units import InHand, Phase, TimerKind, Timers, Unit, UnitTable


@dataclass(slots=True)
class Gate:
    """What the activation allows.

    Attributes:
        open: Messages may be taken from the line.
        stopping: The activation is on its way down.
    """

    open: bool = False
    stopping: bool = False


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


class Room:
    """Room for the machines of one activation: places for units of work, and a limit of messages.

    Who finds no place stands in a queue, so that a machine with a long backlog can't keep the others out.
    Whoever uses it from several threads serialises the calls.

    Args:
        places: Units of work at once, all machines together.
        limit: No more messages than this are settled or under way; `None`: no limit.

    Source: W2, W4.
    """

    def __init__(self, places: int, limit: int | None = None) -> None:
        self._places = places
        self._limit = limit
        self._shares: list[Share] = []
        self._waiting: list[Share] = []

    def join(self, wake: Callable[[], object]) -> Share:
        """Let a machine in and return its share.

        Args:
            wake: Called when there may be room for it after it was refused; it must not block.
        """
        share = Share(room=self, wake=wake)
        self._shares.append(share)
        return share

    def admit(self, share: Share, *, unit: bool, message: bool = True) -> bool:
        """Count something of the share as under way, if there is room for it."""
        share.refused = not self._admit(share, unit=unit, message=message)
        return not share.refused

    def _admit(self, share: Share, *, unit: bool, message: bool) -> bool:
        if self._limit is not None:
            # What waits is counted, but more of it may have come than there is room for.
            waiting = 0 if message else sum(each.waiting for each in self._shares)
            if self._messages() - waiting >= self._limit:
                return False
        if unit:
            free = self._places - sum(each.units for each in self._shares)
            if share not in self._waiting:
                self._waiting.append(share)
            if self._waiting.index(share) >= free:
                return False
            self._waiting.remove(share)
        share.units += unit
        share.taken += message
        share.waiting -= not message
        return True

    def report(self, share: Share, *, units: int, taken: int, settled: int, waiting: int = 0) -> bool:
        """Take what is under way now, and say whether that is less than was counted."""
        less = units < share.units or taken < share.taken
        share.units, share.taken, share.settled, share.waiting = units, taken, settled, waiting
        if less:
            self._wake(but=share)
        return less

    def wants_nothing(self, share: Share) -> None:
        """Take the share out of the queue for places."""
        if share in self._waiting:
            self._waiting.remove(share)
            self._wake(but=share)

    def _messages(self) -> int:
        return sum(each.taken + each.settled for each in self._shares)

    def _wake(self, but: Share) -> None:
        for each in self._shares:
            if each.refused and each is not but:
                each.refused = False
                each.wake()


@dataclass(slots=True, eq=False)
class Share:
    """What one machine has of the room; it asks before it takes a message from its line.

    Attributes:
        room: Of which it is a share.
        wake: Called when there may be room after it was refused.
        units: Units of work under way.
        taken: Messages in them, and those on their way through the in-progress queue.
        settled: Messages settled since the start.
        waiting: How many of those taken are in no unit: they are on their way, or have come from there.
        refused: Whether it was refused last, and not woken since.
    """

    room: Room
    wake: Callable[[], object]
    units: int = 0
    taken: int = 0
    settled: int = 0
    waiting: int = 0
    refused: bool = False

    def admit(self, *, unit: bool, message: bool = True) -> bool:
        """Count something more as under way, if there is room for it.

        Args:
            unit: A unit of work begins.
            message: A message is taken that isn't counted yet; otherwise one that waits.
        """
        return self.room.admit(self, unit=unit, message=message)

    def report(self, *, units: int, taken: int, settled: int, waiting: int = 0) -> bool:
        """Say what is under way now; return whether that is less than was counted."""
        return self.room.report(self, units=units, taken=taken, settled=settled, waiting=waiting)

    def wants_nothing(self) -> None:
        """Say that there is nothing to take, so that others have the place."""
        self.room.wants_nothing(self)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """Opens units while there are messages, up to the concurrency and within the room there is.

    Source: J81-J84, J183; W2, W4.
    """

    settings: DeliverySettings
    gate: Gate
    line: Line
    units: UnitTable
    timers: Timers
    room: Share | None
    staging: Staging
    take: Callable[[Unit, InHand], None]

    def fill(self, settled: int) -> None:
        """Give waiting messages to the units that can take them.

        Args:
            settled: Messages settled since the start.
        """
        if self.room is not None:
            self._fill_room(self.room, settled)
        elif self.gate.open and len(self.line):
            self._fill()

    def _fill_room(self, room: Share, settled: int) -> None:
        self._report(room, settled)
        if self.gate.open:
            self._fill()
            while self._report(room, settled):  # what has left its unit at once makes room again
                self._fill()
        full = len(self.units) >= self.settings.concurrency
        if full or not self.gate.open or not (self.line.offers_front(None) or self._offers_turn(None)):
            room.wants_nothing()

    def _report(self, room: Share, settled: int) -> bool:
        return room.report(units=len(self.units), taken=self._taken, settled=settled, waiting=self._waiting)

    @property
    def _taken(self) -> int:
        """How many messages are in units, or in progress and about to be."""
        return self.units.in_hand + self._waiting

    @property
    def _waiting(self) -> int:
        """How many messages are on their way through the in-progress queue, or have come from there."""
        return len(self.staging) + self.line.in_front if self.settings.in_progress else 0

    def _offers_turn(self, number: int | None) -> bool:
        """Say whether a unit may take a message that isn't under way yet."""
        settings = self.settings
        # No more are put in progress than can be handled at once: they would be in doubt after a crash.
        full = settings.in_progress and self._taken >= settings.concurrency * settings.batch_size
        return not full and self.line.offers_turn(number)

    def _fill(self) -> None:
        if self.settings.batch_size > 1:
            for unit in self.units:
                if unit.phase is Phase.COLLECTING and (message := self._next(unit)) is not None:
                    self.timers.clear(TimerKind.IDLE, unit.number)
                    self.take(unit, message)
        while len(self.units) < self.settings.concurrency:
            if (message := self._next(None)) is None:
                return
            self.take(self.units.open(), message)

    def _next(self, unit: Unit | None) -> InHand | None:
        """Return the message that is to be taken by a unit, or by a new one; `None` if none may be."""
        number = None if unit is None else unit.number
        if self.room is not None:
            in_front = self.line.offers_front(number)
            if not in_front and not self._offers_turn(number):
                return None
            counted = in_front and self.settings.in_progress
            if not self.room.admit(unit=unit is None, message=not counted):
                return None
        return self.line.take(number)
