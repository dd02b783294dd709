"""States of in-flight messages and of units of work, and their transitions.

A state changes only along its table; the tests check every change that occurs.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType

from airflow_provider_jmsjca.core.delivery.events import MessageArrived


class Condition(enum.Enum):
    """What may be done with a message.

    Attributes:
        DELIVERABLE: The message may be delivered.
        POISON: The handler raised an exception after which the message isn't retried: it goes to the
            dead-letter destination.
        UNDECODABLE: Poison that can't be delivered.
        UNSUBSCRIBED: Nobody subscribes to the message: it is not delivered.
        IN_DOUBT: The outcome of an earlier attempt is unknown: the message goes to limbo.
    """

    DELIVERABLE = enum.auto()
    POISON = enum.auto()
    UNDECODABLE = enum.auto()
    UNSUBSCRIBED = enum.auto()
    IN_DOUBT = enum.auto()


class Counted(enum.Enum):
    """How far a delivery of a message has been counted (J129).

    Attributes:
        ARRIVED: The broker's redelivered flag has not been evaluated.
        EVALUATED: The flag was evaluated while the message went back; nothing is counted.
        AGAIN: An attempt at it failed: its next delivery counts.
        SEEN: The delivery is counted, as a first one.
        RAISED: The delivery is counted, and raised the tracker's count.
        STORED: The delivery is counted by the number of the stored attempt.
    """

    ARRIVED = enum.auto()
    EVALUATED = enum.auto()
    AGAIN = enum.auto()
    SEEN = enum.auto()
    RAISED = enum.auto()
    STORED = enum.auto()


COUNTED = frozenset({Counted.SEEN, Counted.RAISED, Counted.STORED})


class Phase(enum.Enum):
    """Phase of a unit of work; each line names the events that end the phase.

    Attributes:
        TAKING: The machine decides on the next message.
        RECORDING: The next message waits for `AttemptRecorded`.
        WAITING: The next message is delayed: timer SLICE.
        SETTLING: The next message is moved, deleted or parked: the outcome of that unit.
        HANDLING: `HandlerReturned`, `HandlerRaised`, `HandlerNotCalled`.
        COLLECTING: A batch with room: the next message, timers IDLE and FLUSH.
        ENDING: EndOfBatch is being handled: `HandlerReturned`, `HandlerRaised`.
        HOLDING: Handled, not all acknowledged: `Acknowledged`, timer TIMEOUT.
        COMMITTING: The outcome of the unit.
        OVER: The unit has ended.
    """

    TAKING = enum.auto()
    RECORDING = enum.auto()
    WAITING = enum.auto()
    SETTLING = enum.auto()
    HANDLING = enum.auto()
    COLLECTING = enum.auto()
    ENDING = enum.auto()
    HOLDING = enum.auto()
    COMMITTING = enum.auto()
    OVER = enum.auto()


class Prospect(enum.IntEnum):
    """How a unit of work is going to end; each includes those before it.

    Attributes:
        COMMIT: The unit may take more messages, and be committed.
        FULL: The unit takes no more messages.
        ROLLBACK: The unit ends in a rollback.
        EXPIRED: The unit lasted too long: no acknowledgement is waited for.
        LOST: The connection is gone: the unit can't be settled any more.
    """

    COMMIT = 0
    FULL = 1
    ROLLBACK = 2
    EXPIRED = 3
    LOST = 4


def _table(kind: type[enum.Enum], **rows: str) -> dict[enum.Enum, frozenset[enum.Enum]]:
    return {kind[name]: frozenset(kind[each] for each in row.split()) for name, row in rows.items()}


TRANSITIONS: Mapping[enum.Enum, frozenset[enum.Enum]] = MappingProxyType(
    _table(
        Condition,
        DELIVERABLE="POISON IN_DOUBT",
        POISON="DELIVERABLE IN_DOUBT",
        UNDECODABLE="IN_DOUBT",
        UNSUBSCRIBED="IN_DOUBT",
        IN_DOUBT="",
    )
    | _table(
        Counted,
        ARRIVED="EVALUATED AGAIN SEEN RAISED STORED",
        EVALUATED="",
        AGAIN="RAISED STORED",
        SEEN="AGAIN",
        RAISED="AGAIN",
        STORED="SEEN AGAIN",
    )
    | _table(
        Phase,
        TAKING="RECORDING WAITING SETTLING HANDLING COLLECTING ENDING OVER",
        RECORDING="WAITING SETTLING HANDLING COLLECTING ENDING OVER",
        WAITING="TAKING HANDLING SETTLING COLLECTING ENDING OVER",
        SETTLING="WAITING HANDLING COLLECTING ENDING OVER",
        HANDLING="COLLECTING ENDING HOLDING COMMITTING OVER",
        COLLECTING="TAKING ENDING OVER",
        ENDING="HOLDING COMMITTING OVER",
        HOLDING="COMMITTING OVER",
        COMMITTING="OVER",
        OVER="",
    )
    | _table(
        Prospect,
        COMMIT="FULL ROLLBACK EXPIRED LOST",
        FULL="ROLLBACK EXPIRED LOST",
        ROLLBACK="EXPIRED LOST",
        EXPIRED="LOST",
        LOST="",
    )
)
"""The states that may follow each state. Of a message: what may be done with it, and how it is counted. Of
a unit of work: what it does, and how it is going to end."""


def check_transition(before: enum.Enum, after: enum.Enum) -> None:
    """Check a change of state against the table.

    Raises:
        AssertionError: The table doesn't have it.
    """
    if after is not before and after not in TRANSITIONS[before]:
        raise AssertionError(f"{before!r} never becomes {after!r}")


@dataclass(slots=True, eq=False)
class InFlightMessage:
    """A message received and not settled.

    Attributes:
        arrival: The event that reported it.
        key: The message's id, or a substitute for it.
        condition: What may be done with it.
        counted: How far this delivery has been counted.
        seen: The count of this delivery.
        calls: Number of hand-overs to a handler on this delivery by the broker.
        moves_failed: Number of failed moves, if moves are retried.
        first: The first sighting on this delivery counted as a redelivery.
        served: The delay has been served already.
        first_noted: There was no state for the message before its unit timed out.
    """

    arrival: MessageArrived
    key: str
    condition: Condition = Condition.DELIVERABLE
    counted: Counted = Counted.ARRIVED
    seen: int = 0
    calls: int = 0
    moves_failed: int = 0
    first: bool = False
    served: bool = False
    first_noted: bool = False

    @property
    def name(self) -> str:
        """The message's name in the log."""
        message_id = self.arrival.message_id
        return "without id" if message_id is None else repr(message_id)


@dataclass(slots=True, eq=False)
class Unit:
    """A unit of work: one message, or the messages of a batch.

    Attributes:
        number: The number of the unit.
        phase: The present phase.
        prospect: How the unit is going to end.
        members: Messages handed to the handler, in order.
        current: The next member, until it is handed over or leaves the unit.
        call: The handler call that is running.
        calls: All calls so far.
        unacknowledged: Calls that hold-until-ack waits for.
        uncalled: Members whose handler could not be called.
        waited: The longest delay that it has served: a batch serves each moment of a delay once.
        slices: The rest of the delay being served.
        size: Bytes of memory that its large members take.
    """

    number: int
    phase: Phase = Phase.TAKING
    prospect: Prospect = Prospect.COMMIT
    members: list[InFlightMessage] = field(default_factory=list)
    current: InFlightMessage | None = None
    call: int | None = None
    calls: list[int] = field(default_factory=list)
    unacknowledged: set[int] = field(default_factory=set)
    uncalled: list[InFlightMessage] = field(default_factory=list)
    waited: timedelta = timedelta(0)
    slices: list[timedelta] = field(default_factory=list)
    size: int = 0

    @property
    def messages(self) -> Iterator[InFlightMessage]:
        """Every message it holds."""
        yield from self.members
        if self.current is not None:
            yield self.current

    def become(self, prospect: Prospect) -> None:
        """Have it end at least like this."""
        self.prospect = max(self.prospect, prospect)


@dataclass(slots=True)
class Gate:
    """Permissions of the activation.

    Attributes:
        open: Messages may be taken from the pending queue.
        stopping: The activation is on its way down.
    """

    open: bool = False
    stopping: bool = False
