"""What the delivery machine remembers: messages in hand, units of work, timers."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeAlias

from airflow_provider_jmsjca.core.delivery.events import MessageArrived


class Phase(enum.Enum):
    """Where a unit of work is; which event moves it on is said with each."""

    RECORDING = enum.auto()  # its next message waits for AttemptRecorded
    WAITING = enum.auto()  # its next message is delayed: timer SLICE
    SETTLING = enum.auto()  # its next message is moved, deleted or parked: outcome of that unit
    HANDLING = enum.auto()  # HandlerReturned, HandlerRaised
    COLLECTING = enum.auto()  # a batch with room: the next message, timers IDLE and FLUSH
    ENDING = enum.auto()  # EndOfBatch is being handled: HandlerReturned, HandlerRaised
    HOLDING = enum.auto()  # handled, not all acknowledged: Acknowledged, timer TIMEOUT
    COMMITTING = enum.auto()  # outcome of the unit


@dataclass(slots=True, kw_only=True, eq=False)
class InHand:
    """A message received and not settled.

    Attributes:
        key: Its message id, or something that stands for it.
        source: Which of the destinations it came from.
        arrival: What the broker says of its deliveries; `None` once that is taken into account.
        flagged: It was delivered before, so the sighting counts (J129).
        counted: This sighting has been counted already.
        raised: Counting it has raised the tracker's count.
        stored: Counting it has raised the stored number of attempts.
        first: Its first sighting on this delivery counted as a redelivery.
        calls: How often it was handed over on this delivery by the broker.
        uncalled: It was handed over, and its handler could not be called.
        served: Its delay has been served already.
        poison: It goes to the dead-letter destination.
        undecodable: It can't be delivered.
        unsubscribed: It is not to be delivered.
        in_progress: It stands in the in-progress queue.
        moves_failed: How often it could not be moved, where that is tried again.
        set_aside: It goes to limbo, for its outcome is in doubt.
    """

    delivery: int
    key: str
    message_id: str | None
    group: str | None
    poison: bool
    undecodable: bool
    arrival: MessageArrived | None = None
    flagged: bool = False
    first: bool = False
    served: bool = False
    unsubscribed: bool = False
    in_progress: bool = False
    source: int = 0
    seen: int = 0
    counted: bool = False
    raised: bool = False
    stored: bool = False
    calls: int = 0
    uncalled: bool = False
    moves_failed: int = 0
    set_aside: bool = False

    @property
    def name(self) -> str:
        """What the log calls it."""
        return "without id" if self.message_id is None else repr(self.message_id)

    @property
    def is_to_be_staged(self) -> bool:
        """Whether it goes to the in-progress queue before it is handled, if there is one."""
        return not (self.in_progress or self.undecodable or self.unsubscribed)


@dataclass(slots=True, kw_only=True, eq=False)
class Unit:
    """A unit of work: one message, or the messages of a batch.

    Attributes:
        members: Messages handed to the handler, in order.
        current: The next member, until it is handed over or leaves the unit.
        call: The handler call that is running.
        calls: All its calls so far.
        unacknowledged: Calls that hold-until-ack waits for.
        rollback: It ends in a rollback.
        lost: Its connection is gone: it can't be settled any more.
        expired: It lasted too long: nobody's acknowledgement is waited for.
        full: It takes no more messages.
        waited: The longest delay that it has served: a batch serves each moment of a delay once.
        slices: What is left of the delay being served.
    """

    number: int
    phase: Phase = Phase.RECORDING
    members: list[InHand] = field(default_factory=list)
    current: InHand | None = None
    call: int | None = None
    calls: list[int] = field(default_factory=list)
    unacknowledged: set[int] = field(default_factory=set)
    rollback: bool = False
    lost: bool = False
    expired: bool = False
    full: bool = False
    waited: timedelta = timedelta(0)
    slices: list[timedelta] = field(default_factory=list)

    @property
    def messages(self) -> Iterator[InHand]:
        """Every message it holds."""
        yield from self.members
        if self.current is not None:
            yield self.current


class TimerKind(enum.IntEnum):
    """What a timer is for; all but the last two belong to a unit.

    Numbers, because they are keys that are looked up several times for each message.
    """

    SLICE = enum.auto()
    IDLE = enum.auto()
    FLUSH = enum.auto()
    TIMEOUT = enum.auto()
    CONNECT = enum.auto()
    STOP = enum.auto()


Timer: TypeAlias = tuple[TimerKind, int]


class Timers:
    """The moments at which something is due, in seconds of whatever clock the caller uses."""

    def __init__(self) -> None:
        self._due: dict[Timer, float] = {}
        self.now = 0.0

    def set(self, kind: TimerKind, owner: int, pause: timedelta) -> None:
        """Start a timer, anew if it runs."""
        self._due[kind, owner] = self.now + pause.total_seconds()

    def hasten(self, kind: TimerKind, owner: int, pause: timedelta) -> None:
        """Let a timer that runs be due earlier, if this is earlier."""
        timer = kind, owner
        if timer in self._due:
            self._due[timer] = min(self._due[timer], self.now + pause.total_seconds())

    def set_for(self, kind: TimerKind, owner: int, moment: float) -> None:
        """Start a timer that is due at a moment."""
        self._due[kind, owner] = moment

    def clear(self, kind: TimerKind, owner: int) -> None:
        """Stop a timer, if it runs."""
        self._due.pop((kind, owner), None)

    @property
    def deadline(self) -> float | None:
        """When the next one is due; `None` if none runs."""
        return min(self._due.values(), default=None)

    def take_due(self) -> Iterator[Timer]:
        """Yield and stop every timer that is due, the earliest first; one stopped meanwhile is left out."""
        for timer in sorted(self._due, key=self._due.__getitem__):
            when = self._due.get(timer)
            if when is not None and when <= self.now:
                del self._due[timer]
                yield timer


class UnitTable:
    """Units by number and by the numbers of their calls. A number is never used twice.

    Attributes:
        next_number: Returns a number for a unit or a call.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self.next_number = self._numbers.__next__
        self._units: dict[int, Unit] = {}
        self._calls: dict[int, tuple[Unit, InHand | None]] = {}

    def __len__(self) -> int:
        return len(self._units)

    def __iter__(self) -> Iterator[Unit]:
        """Iterate over the units there are now, whatever happens to the table meanwhile."""
        return iter(tuple(self._units.values()))

    def __getitem__(self, number: int) -> Unit:
        return self._units[number]

    def __contains__(self, number: int) -> bool:
        return number in self._units

    @property
    def in_hand(self) -> int:
        """How many messages the units hold that are not lost."""
        units = self._units.values()
        return sum(len(unit.members) + (unit.current is not None) for unit in units if not unit.lost)

    def open(self) -> Unit:
        """Begin a unit."""
        unit = Unit(number=self.next_number())
        self._units[unit.number] = unit
        return unit

    def adopt(self, unit: Unit) -> None:
        """Take in a unit and its calls as they are."""
        self._units[unit.number] = unit
        for call, message in zip(unit.calls, unit.members, strict=True):
            self._calls[call] = unit, message

    def call(self, unit: Unit, message: InHand | None, phase: Phase) -> int:
        """Begin a handler call of a unit; without a message it is that of EndOfBatch."""
        call = self.next_number()
        unit.phase = phase
        unit.call = call
        unit.calls.append(call)
        self._calls[call] = unit, message
        return call

    def of_call(self, call: int) -> tuple[Unit, InHand | None] | tuple[None, None]:
        """Return the unit and the message of a call, also after the handler returned, until the unit ends."""
        return self._calls.get(call, (None, None))

    def committing(self, number: int) -> Unit | None:
        """Return the unit of that number, if it is being committed."""
        unit = self._units.get(number)
        return unit if unit is not None and unit.phase is Phase.COMMITTING else None

    def recording(self, delivery: int) -> Unit | None:
        """Return the unit that waits for this delivery's attempt to be recorded."""
        for unit in self._units.values():
            if unit.phase is Phase.RECORDING and unit.current and unit.current.delivery == delivery:
                return unit
        return None

    def close(self, unit: Unit) -> None:
        """End a unit and its calls."""
        del self._units[unit.number]
        for call in unit.calls:
            del self._calls[call]
