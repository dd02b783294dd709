"""What the delivery machine remembers: messages in hand, units of work, timers."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeAlias


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
        flagged: It was delivered before, so the sighting counts (J129).
        counted: This sighting has been counted already.
        served: Its delay has been served already.
        poison: It goes to the dead-letter destination.
        undecodable: It can't be delivered.
        unsubscribed: It is not to be delivered.
        in_progress: It stands in the in-progress queue.
        moves_failed: How often it could not be moved, where that is tried again.
    """

    delivery: int
    key: str
    message_id: str | None
    group: str | None
    flagged: bool
    served: bool
    poison: bool
    undecodable: bool
    unsubscribed: bool = False
    in_progress: bool = False
    source: int = 0
    seen: int = 0
    counted: bool = False
    moves_failed: int = 0

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
