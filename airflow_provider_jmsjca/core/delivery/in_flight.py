"""State of the machine: pending messages, units of work, timers, and delivery counts."""

from __future__ import annotations

import enum
import itertools
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, MutableSequence, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import chain
from typing import TypeAlias

from airflow_provider_jmsjca.core.delivery.concurrency import Permits
from airflow_provider_jmsjca.core.delivery.events import MessageArrived
from airflow_provider_jmsjca.core.delivery.settings import DeliverySettings
from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.core.redelivery import MessageState, RedeliveryTracker


class Phase(enum.Enum):
    """Phase of a unit of work; each comment names the event that ends the phase."""

    RECORDING = enum.auto()  # its next message waits for AttemptRecorded
    WAITING = enum.auto()  # its next message is delayed: timer SLICE
    SETTLING = enum.auto()  # its next message is moved, deleted or parked: outcome of that unit
    HANDLING = enum.auto()  # HandlerReturned, HandlerRaised
    COLLECTING = enum.auto()  # a batch with room: the next message, timers IDLE and FLUSH
    ENDING = enum.auto()  # EndOfBatch is being handled: HandlerReturned, HandlerRaised
    HOLDING = enum.auto()  # handled, not all acknowledged: Acknowledged, timer TIMEOUT
    COMMITTING = enum.auto()  # outcome of the unit


@dataclass(slots=True, kw_only=True, eq=False)
class InFlightMessage:
    """A message received and not settled.

    Attributes:
        key: The message's id, or a substitute for it.
        source: Index of the destination it came from.
        consumer: As in `MessageArrived`.
        arrival: The event that reported it, with the broker's redelivered flag; `None` once evaluated.
        flagged: The message was delivered before, so this delivery counts (J129).
        counted: This delivery has been counted already.
        raised: Counting it has raised the tracker's count.
        stored: Counting it has raised the stored number of attempts.
        first: The message's first sighting on this delivery counted as a redelivery.
        calls: Number of hand-overs to a handler on this delivery by the broker.
        uncalled: The message was handed over, and its handler could not be called.
        first_noted: There was no state for it before its unit timed out.
        served: The message's delay has been served already.
        poison: The message goes to the dead-letter destination.
        undecodable: The message can't be delivered.
        unsubscribed: The message is not to be delivered.
        in_progress: The message is in the in-progress queue.
        moves_failed: Number of failed moves, if moves are retried.
        set_aside: The message goes to limbo, because its outcome is unknown.
        size: Bytes of memory that it takes, if it is large.
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
    consumer: int | None = None
    seen: int = 0
    counted: bool = False
    raised: bool = False
    stored: bool = False
    calls: int = 0
    uncalled: bool = False
    first_noted: bool = False
    moves_failed: int = 0
    set_aside: bool = False
    size: int = 0

    @property
    def name(self) -> str:
        """The message's name in the log."""
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
        rollback: The unit ends in a rollback.
        lost: The unit's connection is gone: the unit can't be settled any more.
        expired: The unit lasted too long: nobody's acknowledgement is waited for.
        full: The unit takes no more messages.
        waited: The longest delay that it has served: a batch serves each moment of a delay once.
        slices: The rest of the delay being served.
        size: Bytes of memory that its large members take.
    """

    number: int
    phase: Phase = Phase.RECORDING
    members: list[InFlightMessage] = field(default_factory=list)
    current: InFlightMessage | None = None
    call: int | None = None
    calls: list[int] = field(default_factory=list)
    unacknowledged: set[int] = field(default_factory=set)
    rollback: bool = False
    lost: bool = False
    expired: bool = False
    full: bool = False
    waited: timedelta = timedelta(0)
    slices: list[timedelta] = field(default_factory=list)
    size: int = 0

    @property
    def messages(self) -> Iterator[InFlightMessage]:
        """Every message it holds."""
        yield from self.members
        if self.current is not None:
            yield self.current


class TimerKind(enum.IntEnum):
    """Purposes of timers; all but the last two belong to a unit.

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
    """Timers and their due times, in seconds of the caller's clock."""

    def __init__(self) -> None:
        self._due: dict[Timer, float] = {}
        self.now = 0.0

    def set(self, kind: TimerKind, owner: int, pause: timedelta) -> None:
        """Start or restart a timer."""
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
        """Yield and stop every due timer, the earliest first; skip those stopped in between."""
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
        self._calls: dict[int, tuple[Unit, InFlightMessage | None]] = {}

    def __len__(self) -> int:
        return len(self._units)

    def __iter__(self) -> Iterator[Unit]:
        """Iterate over a snapshot of the units; the table may change during the iteration."""
        return iter(tuple(self._units.values()))

    def __getitem__(self, number: int) -> Unit:
        return self._units[number]

    def __contains__(self, number: int) -> bool:
        return number in self._units

    @property
    def in_flight(self) -> int:
        """Number of messages in units that are not lost."""
        units = self._units.values()
        return sum(len(unit.members) + (unit.current is not None) for unit in units if not unit.lost)

    def open(self) -> Unit:
        """Begin a unit."""
        unit = Unit(number=self.next_number())
        self._units[unit.number] = unit
        return unit

    def adopt(self, unit: Unit) -> None:
        """Add an existing unit with its calls."""
        self._units[unit.number] = unit
        for call, message in zip(unit.calls, unit.members, strict=True):
            self._calls[call] = unit, message

    def call(self, unit: Unit, message: InFlightMessage | None, phase: Phase) -> int:
        """Begin a handler call of a unit; without a message it is the EndOfBatch call."""
        call = self.next_number()
        unit.phase = phase
        unit.call = call
        unit.calls.append(call)
        self._calls[call] = unit, message
        return call

    def of_call(self, call: int) -> tuple[Unit, InFlightMessage | None] | tuple[None, None]:
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


@dataclass(slots=True)
class Gate:
    """Permissions of the activation.

    Attributes:
        open: Messages may be taken from the line.
        stopping: The activation is on its way down.
    """

    open: bool = False
    stopping: bool = False


class RoundRobin:
    """Round robin, one message a turn, in cycles.

    In a cycle a destination gives at most `quantity` messages; an empty destination is skipped. The cycle
    ends when no destination can give more, and the next one begins with the first destination.

    Args:
        destinations: Number of destinations.
        quantity: Maximum number of messages of each in a cycle.

    Source: I4-I6, I51.
    """

    def __init__(self, destinations: int, quantity: int) -> None:
        self._quantity = quantity
        self._given = [0] * destinations
        self._next = 0

    def take(self, has_any: Callable[[int], bool]) -> int | None:
        """Give the turn to a destination and return its index.

        Args:
            has_any: Returns whether a destination has a message to give.

        Returns:
            The index; `None` if no destination has a message, and the order of turns doesn't change.
        """
        count = len(self._given)
        for step in range(count):
            candidate = (self._next + step) % count
            if self._given[candidate] < self._quantity and has_any(candidate):
                return self._turn_of(candidate)
        for candidate in range(count):
            if has_any(candidate):
                self._given = [0] * count
                return self._turn_of(candidate)
        return None

    def _turn_of(self, destination: int) -> int:
        self._given[destination] += 1
        self._next = (destination + 1) % len(self._given)
        return destination


class PendingQueue:
    """First come, first taken, except that some must wait for a unit to end.

    A message group belongs to the unit that has taken one of its messages. A message that came back after its
    connection was lost waits while its old handler call still runs.

    Several destinations have a queue each, and take turns. Messages that were put back are taken first and
    use no turn: their destination has had it.

    A consumer that settles in order has a queue of its own. It belongs to the unit that has taken a message
    from it, which takes from no other, and always the first message: that one blocks those behind it.

    Args:
        destinations: How many there are.
        quantity: Most messages of each in a cycle of turns (I4).

    Attributes:
        size: Bytes of memory that large waiting messages take.
    """

    def __init__(self, destinations: int, quantity: int) -> None:
        self.size = 0
        self._count = 0
        self._front: list[InFlightMessage] = []
        self._lines: tuple[deque[InFlightMessage], ...] = tuple(deque() for _ in range(destinations))
        self._turns = RoundRobin(destinations, quantity) if destinations > 1 else None
        self._claims: dict[tuple[str, str], int] = {}
        self._in_order: dict[int, deque[InFlightMessage]] = {}  # by consumer
        self._owners: dict[int, int] = {}  # the unit that has a consumer
        self._consumers: dict[int, int | None] = {}  # the consumer from which a unit takes

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[InFlightMessage]:
        """Yield every message that waits."""
        return chain(self._front, *self._lines, *self._in_order.values())

    @property
    def has_claims(self) -> bool:
        """Whether a unit has reserved a group, messages or a consumer."""
        return bool(self._claims or self._owners)

    def append(self, message: InFlightMessage) -> None:
        """Put a message at the end of its line; one that is in progress has had its turn."""
        self._count += 1
        self.size += message.size
        if message.consumer is not None:
            self._queue_of(message.consumer).append(message)
        elif message.in_progress:
            self._front.append(message)
        else:
            self._lines[message.source].append(message)

    def push_front(self, messages: Sequence[InFlightMessage]) -> None:
        """Put messages of one unit back in front, in their order."""
        self._count += len(messages)
        self.size += sum(message.size for message in messages)
        if messages and (consumer := messages[0].consumer) is not None:
            self._queue_of(consumer).extendleft(reversed(messages))
        else:
            self._front[:0] = messages

    def _queue_of(self, consumer: int) -> deque[InFlightMessage]:
        queue = self._in_order.get(consumer)
        if queue is None:
            queue = self._in_order[consumer] = deque()
        return queue

    def clear(self) -> None:
        """Let go of all messages."""
        self._count = self.size = 0
        self._front.clear()
        self._in_order.clear()
        for line in self._lines:
            line.clear()

    @property
    def in_front(self) -> int:
        """Number of messages that are taken before all others, without a turn."""
        return len(self._front)

    def take(self, number: int | None) -> InFlightMessage | None:
        """Remove and return the first message that this unit may take; `None` for a unit yet to be."""
        message = self._take(number) if self._count else None
        if message is not None:
            self._count -= 1
            self.size -= message.size
        return message

    def _take(self, number: int | None) -> InFlightMessage | None:
        if self._in_order and (queue := self._offered_in_order(number)) is not None:
            return queue.popleft()
        if not self._may_take_any(number):
            return None
        if self._front and (message := self._take_from(self._front, number)) is not None:
            return message
        if self._turns is None:
            return self._take_from(self._lines[0], number)
        source = self._turns.take(lambda each: self._find(self._lines[each], number) is not None)
        return None if source is None else self._take_from(self._lines[source], number)

    def offers_front(self, number: int | None) -> bool:
        """Return whether this unit may take a message without asking for a turn."""
        return self._may_take_any(number) and self._find(self._front, number) is not None

    def offers_turn(self, number: int | None) -> bool:
        """Return whether a destination has a message that this unit may take."""
        if self._in_order and self._offered_in_order(number) is not None:
            return True
        return self._may_take_any(number) and any(
            self._find(line, number) is not None for line in self._lines
        )

    def _may_take_any(self, number: int | None) -> bool:
        """Return whether a unit takes messages of consumers that don't settle in order."""
        return number is None or self._consumers.get(number) is None

    def _offered_in_order(self, number: int | None) -> deque[InFlightMessage] | None:
        """Return the queue of a consumer from which this unit may take the first message."""
        taken_from: Iterable[int | None]
        if number is not None and number in self._consumers:
            taken_from = (self._consumers[number],)
        else:
            taken_from = (each for each in self._in_order if each not in self._owners)
        for consumer in taken_from:
            queue = None if consumer is None else self._in_order.get(consumer)
            if queue and self._is_free(queue[0], number):
                return queue
        return None

    def _take_from(
        self, line: MutableSequence[InFlightMessage], number: int | None
    ) -> InFlightMessage | None:
        index = self._find(line, number)
        if index is None:
            return None
        message = line[index]
        del line[index]
        return message

    def _find(self, line: MutableSequence[InFlightMessage], number: int | None) -> int | None:
        for index, message in enumerate(line):
            if self._is_free(message, number):
                return index
        return None

    def _is_free(self, message: InFlightMessage, number: int | None) -> bool:
        """Return whether no other unit has reserved a message or its group."""
        return not self._claims or (
            self._claims.get(("message", message.key), number) == number
            and (message.group is None or self._claims.get(("group", message.group), number) == number)
        )

    def claim(self, unit: Unit, message: InFlightMessage) -> None:
        """Reserve for a unit the group and the consumer of a message that it takes."""
        if message.group is not None:
            self._claims["group", message.group] = unit.number
        if message.consumer is not None:
            self._owners[message.consumer] = unit.number
        self._consumers[unit.number] = message.consumer

    def claim_messages(self, unit: Unit) -> None:
        """Reserve every message of the unit for it."""
        self._claims.update({("message", message.key): unit.number for message in unit.messages})

    def release(self, unit: Unit) -> None:
        """Release the reservations of a unit."""
        consumer = self._consumers.pop(unit.number, None)
        if consumer is not None:
            del self._owners[consumer]
        if self._claims:
            self._claims = {claim: owner for claim, owner in self._claims.items() if owner != unit.number}


class InProgressTracking:
    """Tracks messages put into the in-progress queue and not yet received from it.

    A copy may arrive before the broker has confirmed that it was put there. Messages without an id can't be
    tracked, and aren't counted.

    Source: I9.
    """

    def __init__(self) -> None:
        self._in_flight: set[str] = set()
        self._pending: set[str] = set()
        self._early: set[str] = set()

    def __len__(self) -> int:
        return len(self._in_flight)

    def begin(self, message_id: str | None) -> None:
        """Note that a message is being put into the in-progress queue."""
        if message_id is not None:
            self._pending.add(message_id)

    def end(self, message_id: str | None, *, done: bool) -> None:
        """Note that putting a message there is confirmed (`done`), or has failed."""
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
        """Forget all messages: no more will arrive over this connection."""
        self._in_flight.clear()
        self._pending.clear()
        self._early.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitScheduler:
    """Opens units while there are messages, up to the concurrency and within the room there is.

    Source: J81-J84, J183; W2, W4.
    """

    settings: DeliverySettings
    gate: Gate
    line: PendingQueue
    units: UnitTable
    timers: Timers
    room: Permits | None
    staging: InProgressTracking
    take: Callable[[Unit, InFlightMessage], None]
    end_batch: Callable[[Unit], None]

    def wants_message(self, beside: int) -> bool:
        """Return whether nothing waits, and a unit could begin or is a batch with room.

        Args:
            beside: Units that aren't in the table.
        """
        if len(self.line):
            return False
        if len(self.units) + beside < self.settings.concurrency:
            return True
        return any(unit.phase is Phase.COLLECTING for unit in self.units)

    def fill(self, settled: int) -> None:
        """Give waiting messages to the units that can take them.

        Args:
            settled: Messages settled since the start.
        """
        if self.room is not None:
            self._fill_room(self.room, settled)
        elif self.gate.open and len(self.line):
            self._fill()

    def _fill_room(self, room: Permits, settled: int) -> None:
        self._report(room, settled)
        if self.gate.open:
            self._fill()
            while self._report(room, settled):  # messages that left their unit at once free permits
                self._fill()
        if not self.gate.open or not (self.line.offers_front(None) or self._offers_turn(None)):
            room.withdraw()

    def _report(self, room: Permits, settled: int) -> bool:
        return room.report(units=len(self.units), taken=self._taken, settled=settled, waiting=self._waiting)

    @property
    def _taken(self) -> int:
        """Number of messages in units, or in progress and about to be."""
        return self.units.in_flight + self._waiting

    @property
    def _waiting(self) -> int:
        """Number of messages in transit through the in-progress queue, or received from it and pending."""
        return len(self.staging) + self.line.in_front if self.settings.in_progress else 0

    def _offers_turn(self, number: int | None) -> bool:
        """Return whether a unit may take a message that isn't under way yet."""
        settings = self.settings
        # No more are put in progress than can be handled at once: they would be in doubt after a crash.
        full = settings.in_progress and self._taken >= settings.concurrency * settings.batch_size
        return not full and self.line.offers_turn(number)

    def _fill(self) -> None:
        if self.settings.batch_size > 1:
            for unit in self.units:
                if unit.phase is not Phase.COLLECTING:
                    continue
                if (message := self._next(unit)) is not None:
                    self.timers.clear(TimerKind.IDLE, unit.number)
                    self.take(unit, message)
                elif self._is_full():
                    self.end_batch(unit)
        while len(self.units) < self.settings.concurrency:
            if (message := self._next(None)) is None:
                return
            self.take(self.units.open(), message)

    def _is_full(self) -> bool:
        """Return whether messages that wait for other units use up the memory for more."""
        # Messages in progress are received even if that memory is used up.
        if self.settings.in_progress or not len(self.line):
            return False
        taken = sum(
            unit.size + (0 if unit.current is None else unit.current.size)
            for unit in self.units
            if not unit.lost
        )
        return self.line.size + taken >= self.settings.batch_bytes

    def _next(self, unit: Unit | None) -> InFlightMessage | None:
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


IN_DOUBT_LIMIT = 5000
FAILING_LIMIT = 100_000


@dataclass(frozen=True, slots=True)
class FailedMoves:
    """Outcomes of earlier attempts to move a message.

    Attributes:
        failed: Number of moves refused, or lost with their connection.
        lost: Number of moves lost with their connection.
        delivered: The message has been delivered since, because it could not be moved.
    """

    failed: int = 0
    lost: int = 0
    delivered: bool = False


_NONE = FailedMoves()


class DeliveryCounts:
    """Turns arrivals into in-flight messages, and counts each delivery once.

    Args:
        tracker: Counts and notes.
        take_back: Called with the id and the source of a message to remove its stored attempt.
        counts_repeats: As in `DeliverySettings`.

    Attributes:
        remembered: Views of the ids with state, for lookups without a call.
        failing: Keys of the messages that have failed since one was last settled, or delivered for the first
            time; at most `FAILING_LIMIT`.

    Source: J129-J132, J169-J171.
    """

    def __init__(
        self,
        tracker: RedeliveryTracker,
        take_back: Callable[[str, int], object],
        *,
        counts_repeats: bool,
    ) -> None:
        self._tracker = tracker
        self._counts_repeats = counts_repeats
        self._take_back = take_back
        self._in_doubt: OrderedDict[str, None] = OrderedDict()
        self._failed_moves: OrderedDict[str, FailedMoves] = OrderedDict()
        self.failing: set[str] = set()
        self.remembered = (tracker.known, self._in_doubt.keys(), tracker.taken_back)

    def receive(self, event: MessageArrived) -> InFlightMessage:
        """Return the message that arrived; it isn't counted before its turn comes."""
        return InFlightMessage(
            delivery=event.delivery,
            key=_key(event),
            message_id=event.message_id,
            group=event.group or None,
            poison=event.undecodable is not None,
            undecodable=event.undecodable is not None,
            arrival=event,
            unsubscribed=event.unsubscribed,
            in_progress=event.in_progress,
            source=event.source,
            consumer=event.consumer,
            size=event.size,
        )

    def knows(self, message_id: str) -> bool:
        """Return whether a message was handed over before, or something was noted about it."""
        return message_id in self._tracker or message_id in self._in_doubt

    def _look(self, message: InFlightMessage) -> None:
        """Evaluate the broker's redelivered flag, unless the earlier delivery is known to be no attempt.

        This waits for the message's turn, because the outcome of its delivery over the earlier connection
        may arrive until then.
        """
        event, message.arrival = message.arrival, None
        if event is None:
            return
        tracker, key = self._tracker, message.key
        redelivered = event.redelivered and self._counts_repeats and tracker.flag_means_failure(key)
        message.served = event.parked is not None and not redelivered
        message.first = message.flagged = (redelivered or key in tracker) and not message.served
        if event.parked is not None:
            tracker.at_least(key, event.parked)
        if event.undecodable is not None:
            tracker.note(key, failure=event.undecodable)

    def count(self, message: InFlightMessage) -> None:
        """Count this sighting of the message, in memory."""
        self._look(message)
        message.counted, message.raised = True, message.flagged
        key = message.key
        message.seen = self._tracker.seen(key) if message.flagged else self._tracker.state(key).seen

    def recorded(self, message: InFlightMessage, attempt: int) -> None:
        """Take the count from the number of the attempt, as stored."""
        self._look(message)
        message.seen = max(attempt - 1, 0)
        message.counted = message.stored = True
        if message.seen > 0:
            self._tracker.at_least(message.key, message.seen)

    def state(self, message: InFlightMessage) -> MessageState:
        """Return the notes about the message, with the count of this delivery."""
        state = self._tracker.state(message.key)
        return state if state.seen == message.seen else replace(state, seen=message.seen)

    def failed(self, messages: Iterable[InFlightMessage], failure: Failure) -> None:
        """Record the failure of these messages."""
        for message in messages:
            self._tracker.note(message.key, failure=failure)

    def took_too_long(self, messages: Iterable[InFlightMessage], failure: Failure) -> None:
        """Record a timeout of the messages of a unit; it may turn out later that a handler was not called.

        Guarantee: if a message was never handed over and this is its first note, `given_back` removes the
        note, so the timeout does not count as an attempt.
        """
        for message in messages:
            message.first_noted = message.key not in self._tracker
            self._tracker.note(message.key, failure=failure)

    def to_come_again(self, messages: Iterable[InFlightMessage]) -> None:
        """Recognize these messages on redelivery, even from a broker that doesn't flag them."""
        for message in messages:
            message.flagged = True
            message.counted = message.raised = message.stored = message.served = False
            self._tracker.attempted(message.key)
            self.fails(message)

    def fails(self, message: InFlightMessage) -> None:
        """Record that a message is currently failing."""
        if len(self.failing) < FAILING_LIMIT:
            self.failing.add(message.key)

    def given_back(self, messages: Iterable[InFlightMessage]) -> None:
        """Undo the delivery count of messages that go back to the broker unprocessed.

        An attempt is a call of the handler, a move or a deletion. An interrupted delay, waiting, and a
        handler that could not be called are not attempts, regardless of lost connections and suspended
        deliveries, and even if the broker counts them.
        """
        for message in messages:
            if message.message_id is None:  # it could not be recognized later
                continue
            self._look(message)
            if message.first_noted and not message.calls:
                self._tracker.forget_notes(message.key)
            self._tracker.take_back(
                message.key,
                counted=message.raised,
                delivered=not message.calls,
                flagged=message.first,
            )
            self.not_attempted(message)

    def parked(self, message: InFlightMessage) -> None:
        """Record that a copy may have replaced the message at the broker."""
        self._tracker.parked(message.key)

    def not_attempted(self, message: InFlightMessage) -> None:
        """Undo the stored attempt of a message if the attempt was not made."""
        if message.stored and message.message_id is not None:
            self._take_back(message.message_id, message.source)
        message.stored = False

    def doubt(self, messages: Iterable[InFlightMessage]) -> None:
        """Record that the outcome of settling these messages is unknown."""
        self._in_doubt.update(dict.fromkeys(message.key for message in messages))
        while len(self._in_doubt) > IN_DOUBT_LIMIT:
            self._in_doubt.popitem(last=False)

    def move_failed(self, message: InFlightMessage, *, lost: bool) -> None:
        """Note that a move of the message was refused, or `lost` with its connection."""
        before = self.failed_moves(message)
        self._failed_moves[message.key] = replace(before, failed=before.failed + 1, lost=before.lost + lost)
        if len(self._failed_moves) > IN_DOUBT_LIMIT:
            self._failed_moves.popitem(last=False)

    def failed_moves(self, message: InFlightMessage) -> FailedMoves:
        """Return the outcomes of its moves over all connections, since it was last left in its queue."""
        return self._failed_moves.get(message.key, _NONE)

    def delivered(self, message: InFlightMessage) -> None:
        """Note that a message is delivered: perhaps because it could not be moved."""
        if self._failed_moves and (before := self._failed_moves.get(message.key)) is not None:
            self._failed_moves[message.key] = replace(before, delivered=True)

    def left(self, message: InFlightMessage) -> None:
        """Note that a message stays in its queue: its moves are counted from zero if it is redelivered."""
        self._failed_moves.pop(message.key, None)

    def is_in_doubt(self, message: InFlightMessage) -> bool:
        """Return whether an earlier settling of the message has an unknown outcome."""
        return message.key in self._in_doubt

    def forget(self, messages: Iterable[InFlightMessage]) -> None:
        """Drop all about messages that are settled."""
        for message in messages:
            self._tracker.forget(message.key)
            self._in_doubt.pop(message.key, None)
            self._failed_moves.pop(message.key, None)


def _key(event: MessageArrived) -> str:
    key = event.message_id if event.message_id is not None else f"\0{event.delivery}"
    # Copies of a message in several queues may have the same id.
    return f"{key}\0{event.source}" if event.source else key
