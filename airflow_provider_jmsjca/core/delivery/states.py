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
    """Permitted handling of a message.

    Attributes:
        DELIVERABLE: The message may be delivered.
        POISON: The handler raised an exception after which the message isn't retried: it goes to the
            dead-letter destination.
        UNDECODABLE: The message can't be decoded, so it is poison that can't be delivered.
        UNSUBSCRIBED: No handler subscribes to the message, so it is not delivered.
        IN_DOUBT: The outcome of an earlier attempt is unknown: the message goes to limbo.
    """

    DELIVERABLE = enum.auto()
    POISON = enum.auto()
    UNDECODABLE = enum.auto()
    UNSUBSCRIBED = enum.auto()
    IN_DOUBT = enum.auto()


class Counted(enum.Enum):
    """Progress in counting a delivery of a message.

    Attributes:
        ARRIVED: The broker's redelivered flag has not been evaluated.
        EVALUATED: The message returned to the broker before it was counted; only the flag was evaluated.
        AGAIN: An attempt at the message failed: its next delivery counts as a redelivery.
        SEEN: The delivery is counted as a first delivery.
        RAISED: The delivery is counted as a redelivery, which raised the tracker's count.
        STORED: The delivery is counted by the number of the stored attempt.

    Source: J129.
    """

    ARRIVED = enum.auto()
    EVALUATED = enum.auto()
    AGAIN = enum.auto()
    SEEN = enum.auto()
    RAISED = enum.auto()
    STORED = enum.auto()


COUNTED = frozenset({Counted.SEEN, Counted.RAISED, Counted.STORED})


class Phase(enum.Enum):
    """Phase of a unit of work, with the event, timer or outcome that ends the phase.

    Attributes:
        TAKING: The machine decides on the next message.
        RECORDING: The next message waits until its attempt is stored. Ended by `AttemptRecorded`.
        WAITING: The next message is delayed. Ended by timer SLICE.
        SETTLING: The next message is moved, deleted or replaced by a delayed copy, in a separate unit. Ended
            by the outcome of that unit.
        HANDLING: A handler runs. Ended by `HandlerReturned`, `HandlerRaised` or `HandlerNotCalled`.
        COLLECTING: The batch can take more messages. Ended by the next message, or timer IDLE or FLUSH.
        ENDING: A handler runs with EndOfBatch. Ended by `HandlerReturned` or `HandlerRaised`.
        HOLDING: All messages are handled, but not all acknowledged. Ended by `Acknowledged` or timer TIMEOUT.
        COMMITTING: The unit is being committed. Ended by the unit's outcome.
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
    """Expected end of a unit of work; it changes only to a value further down in this list.

    Attributes:
        COMMIT: The unit may take more messages, and be committed.
        FULL: The unit takes no more messages, and may be committed.
        ROLLBACK: The unit ends in a rollback.
        EXPIRED: The unit timed out: it is rolled back without waiting for acknowledgements.
        LOST: The connection is lost: the unit can't be settled any more.
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
"""The states that may follow each state.

`Condition` and `Counted` are states of a message, `Phase` and `Prospect` of a unit of work.
"""


def check_transition(before: enum.Enum, after: enum.Enum) -> None:
    """Check a change of state against the table.

    Raises:
        AssertionError: The table doesn't contain this change.
    """
    if after is not before and after not in TRANSITIONS[before]:
        raise AssertionError(f"{before!r} never becomes {after!r}")


@dataclass(slots=True, eq=False)
class InFlightMessage:
    """A message received and not settled.

    Attributes:
        arrival: The event that reported the message.
        key: The message's id, or a substitute for it.
        condition: Permitted handling of the message.
        counted: Progress in counting this delivery.
        seen: Redelivery count of this delivery.
        calls: Number of handler calls with the message during this delivery by the broker.
        moves_failed: Number of failed moves, if moves are retried.
        first: Whether this delivery by the broker counts as a redelivery; later attempts don't change that.
        served: Whether the delay of this delivery is over.
        first_noted: Whether the tracker had no data of the message before its unit timed out.
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
        phase: The current phase.
        prospect: The expected end of the unit.
        members: Messages delivered to the handler, in order.
        current: The next member, until it is delivered or leaves the unit.
        call: The handler call that is running; `None` if no handler runs.
        calls: All calls so far.
        unacknowledged: Calls that hold-until-ack waits for.
        uncalled: Members whose handler could not be called.
        waited: The longest delay that the unit has served. A later message waits only for the rest of its
            delay.
        left: The rest of the current delay, after its current slice.
        size: Memory in bytes that its large members take.
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
    left: timedelta = timedelta(0)
    size: int = 0

    @property
    def called(self) -> list[InFlightMessage]:
        """The members whose handler was called."""
        return [each for each in self.members if each not in self.uncalled] if self.uncalled else self.members

    @property
    def messages(self) -> Iterator[InFlightMessage]:
        """All messages of the unit."""
        yield from self.members
        if self.current is not None:
            yield self.current


@dataclass(slots=True, eq=False)
class FastPathUnit:
    """A unit of work with one message on its first delivery.

    It has fewer fields than `Unit`. Any event that the machine handles turns all such units into `Unit`s.

    Attributes:
        unit: The unit's number.
        call: The number of the handler call.
        delivery: The number of the message.
        message_id: The message's id.
        group: The message's JMSXGroupID.
        began: Time at which the message was delivered, on the clock of `DeliveryMachine.handle`.
        committing: Whether the handler has returned.
    """

    unit: int
    call: int
    delivery: int
    message_id: str
    group: str | None
    began: float
    committing: bool = False


@dataclass(slots=True)
class Gate:
    """Permissions of the activation, changed by the machine and read by its `Units`.

    Attributes:
        consuming: Whether consumers are open or being opened.
        open: Whether messages may be taken from the pending queue; only while consuming and not stopping.
        stopping: Whether the activation is stopping.
    """

    consuming: bool = False
    open: bool = False
    stopping: bool = False
