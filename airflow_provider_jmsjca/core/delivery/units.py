"""The part of the delivery machine that handles messages in units of work.

The other part, `machine`, handles connections and stops.
"""

from __future__ import annotations

import enum
import functools
import itertools
import operator
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import TypeAlias, assert_never

from airflow_provider_jmsjca.core.delivery.concurrency import Permits
from airflow_provider_jmsjca.core.delivery.counts import FAILING_LIMIT, NO_MOVES, DeliveryCounts
from airflow_provider_jmsjca.core.delivery.decisions import (
    CommitUnit,
    Decision,
    DeleteMessage,
    Deliver,
    DeliverEndOfBatch,
    Leave,
    Log,
    LogLevel,
    MoveMessage,
    Park,
    RecordAttempt,
    RollBackUnit,
    Stage,
    Wait,
)
from airflow_provider_jmsjca.core.delivery.events import (
    Acknowledged,
    AttemptNotRecorded,
    AttemptRecorded,
    FoundHandled,
    FoundInDoubt,
    HandlerNotCalled,
    HandlerRaised,
    HandlerReturned,
    MessageArrived,
    RollbackAsked,
    UnitCommitted,
    UnitFailed,
    UnitInDoubt,
    UnitLost,
)
from airflow_provider_jmsjca.core.delivery.pending import InProgressTracking, PendingQueue
from airflow_provider_jmsjca.core.delivery.settings import DeliverySettings
from airflow_provider_jmsjca.core.delivery.settlement import (
    HAND_OVER,
    Discard,
    HandOver,
    Keep,
    Pause,
    Retry,
    Step,
    TakeOut,
    Transfer,
    after_failure,
    next_step,
    settling,
    unless_exhausted,
)
from airflow_provider_jmsjca.core.delivery.states import (
    COUNTED,
    Condition,
    Counted,
    FastPathUnit,
    Gate,
    InFlightMessage,
    Phase,
    Prospect,
    Unit,
)
from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.core.redelivery import MessageState, RedeliveryTracker, slices
from airflow_provider_jmsjca.core.redelivery.tracker import UNSEEN
from airflow_provider_jmsjca.errors import PoisonMessageError

_POISON = f"{PoisonMessageError.__module__}.{PoisonMessageError.__qualname__}"
TRY_AGAIN = timedelta(seconds=1)
_NUMBER = operator.attrgetter("arrival.delivery")
_SECOND = timedelta(seconds=1)
_MILLISECOND = timedelta(milliseconds=1)
IN_DOUBT = Failure(
    class_names=("InDoubt",), message="an earlier run was handling it and died; the outcome is unknown"
)


class TimerKind(enum.IntEnum):
    """Purposes of timers; all but the last two belong to a unit.

    In this order, they end a slice of a delay, an idle batch, the longest batch, and a unit that exceeds its
    time limit; a pause before connecting, and a stop that takes too long. Members are numbers, because they
    are dictionary keys that are looked up several times for each message.
    """

    SLICE = enum.auto()
    IDLE = enum.auto()
    FLUSH = enum.auto()
    TIMEOUT = enum.auto()
    CONNECT = enum.auto()
    STOP = enum.auto()


Timer: TypeAlias = tuple[TimerKind, int]


_UNIT_TIMERS = (TimerKind.SLICE, TimerKind.IDLE, TimerKind.FLUSH, TimerKind.TIMEOUT)


class Timers:
    """Timers and their due times, in seconds of the caller's clock.

    Attributes:
        due: Due time of each running timer.
        now: The current time.
    """

    def __init__(self) -> None:
        self.due: dict[Timer, float] = {}
        self.now = 0.0

    def set(self, kind: TimerKind, owner: int, pause: timedelta) -> None:
        """Start or restart a timer.

        Args:
            kind: Purpose of the timer.
            owner: Number of the unit; 0 for a timer without a unit.
            pause: Time until the timer is due.
        """
        self.due[kind, owner] = self.now + pause.total_seconds()

    def hasten(self, kind: TimerKind, owner: int, pause: timedelta) -> None:
        """Make a running timer due after `pause` from now, unless it is due earlier."""
        timer = kind, owner
        if timer in self.due:
            self.due[timer] = min(self.due[timer], self.now + pause.total_seconds())

    def take_due(self) -> Iterator[Timer]:
        """Yield and stop every due timer, the earliest first; skip timers stopped in between."""
        for timer in sorted(self.due, key=self.due.__getitem__):
            when = self.due.get(timer)
            if when is not None and when <= self.now:
                del self.due[timer]
                yield timer


class Units:
    """In-flight messages and their units of work.

    At most `concurrency` units exist at once. A unit takes messages one after the other. With
    `record_attempts`, it first waits until the message's attempt is stored. Then it follows the redelivery
    handling for the message's count. The message is delivered, or a separate unit moves it, deletes it, or
    replaces it by a delayed copy.
    A rolled-back message goes to the front of the pending queue and is taken again. Events about calls and
    units that have ended are ignored.

    Args:
        settings: Rules of the activation spec.
        tracker: Counts deliveries.
        timers: Sets delays and deadlines.
        chance: Returns a random number from 0 to 1.
        decide: Receives each decision.
        gate: Permissions of the activation, shared with the machine that changes them.
        room: Permits of this machine, if several machines share a limit; `None`: no shared limit.
        take_back: Called with the id and the source of a message to remove its stored attempt.

    Attributes:
        by_number: The units.
        pending: Messages that no unit has taken.
        counts: Delivery counts and notes.
        next_number: Returns a number for a unit or a call. A number is never used twice.
        fill: Gives waiting messages to the units that can take them.

    Source: J81-J84, J142, J167, J183-J203; W2, W4.
    """

    def __init__(
        self,
        settings: DeliverySettings,
        tracker: RedeliveryTracker,
        timers: Timers,
        chance: Callable[[], float],
        decide: Callable[[Decision], None],
        *,
        gate: Gate,
        room: Permits | None = None,
        take_back: Callable[[str, int], object] = lambda *_: None,
    ) -> None:
        self._settings = settings
        self._timers = timers
        self._chance = chance
        self._decide = decide
        self._gate = gate
        self._room = room
        self.fill = self._fill if room is None else functools.partial(self._fill_room, room)
        self._concurrency = settings.concurrency
        self._batches = settings.batch_size > 1
        timeout = settings.transaction_timeout
        self._timeout = None if timeout is None else timeout.total_seconds()
        # Whether a first delivery is handed over at once.
        self._delivers_first = settings.handling.action_for(0) is None and settings.shelve_at != 0
        # As in `Failure.class_names`, where built-in classes have their module too.
        self._non_retryable = {
            _POISON,
            *(name if "." in name else f"builtins.{name}" for name in settings.non_retryable),
        }
        self._tracker = tracker
        self._known = tracker.states
        self.counts = DeliveryCounts(tracker, take_back, counts_repeats=settings.counts_repeats)
        self.pending = PendingQueue(len(settings.sources), settings.quantity)
        self.next_number = itertools.count(1).__next__
        self.by_number: dict[int, Unit] = {}
        self._calls: dict[int, tuple[Unit, InFlightMessage | None]] = {}
        # By the number of the settling unit: the unit that has the message, the message and the decision.
        self._settling: dict[int, tuple[Unit, InFlightMessage, TakeOut]] = {}
        self._staging = InProgressTracking()
        self._recording: dict[int, InFlightMessage] = {}
        self._overdue: dict[int, InFlightMessage] = {}
        self._settled = 0
        self._warned_of_missing_id = False

    # -- what is under way ---------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether no unit is in progress, and the store has answered for every attempt."""
        return not (self.by_number or self._recording)

    @property
    def in_flight(self) -> int:
        """Number of messages received and neither settled nor lost."""
        return self.pending.count + self._in_units + len(self._staging)

    @property
    def _in_units(self) -> int:
        return sum(
            len(unit.members) + (unit.current is not None)
            for unit in self.by_number.values()
            if unit.prospect is not Prospect.LOST
        )

    @property
    def handles_others(self) -> bool:
        """Whether handlers have messages that aren't in `counts.failing`."""
        failing = self.counts.failing
        if len(failing) >= FAILING_LIMIT:  # further failing messages are not tracked
            return False
        return any(message.key not in failing for unit in self.by_number.values() for message in unit.members)

    @property
    def has_begun_waiting(self) -> bool:
        """Whether a pending message was in a unit before."""
        return any(self.counts.knows(message.key) for message in self.pending)

    def is_open(self, number: int) -> bool:
        """Whether a unit of work is neither over nor being committed."""
        unit = self.by_number.get(number)
        return unit is not None and unit.phase is not Phase.COMMITTING

    def key_of(self, call: int) -> str | None:
        """Return the tracker's key for the message of a call.

        Returns:
            The key; `None` if the call has ended, or is a call with EndOfBatch.
        """
        _, message = self._calls.get(call, (None, None))
        return None if message is None else message.key

    def wants_message(self, beside: int) -> bool:
        """Return whether no message is pending, and a unit could begin or is a batch that takes more.

        Args:
            beside: Number of units on the fast path, which this object doesn't contain.
        """
        if self.pending.count:
            return False
        if len(self.by_number) + beside < self._concurrency:
            return True
        return any(unit.phase is Phase.COLLECTING for unit in self.by_number.values())

    # -- arrivals, and how units take them -----------------------------------------------------------------

    def arrived(self, event: MessageArrived) -> None:
        """Add an arrived message to the pending queue; after consumption has ended, the broker keeps it."""
        if not self._gate.consuming or self._gate.stopping:
            self.returned_to_broker(event)
            return
        if event.message_id is None and not self._warned_of_missing_id:
            self._warned_of_missing_id = True
            self._log(
                LogLevel.WARNING,
                "received a message without an id: its deliveries can't be counted across a redelivery. "
                "Set message_id_fallback to identify such messages",
            )
        message = self.counts.receive(event)
        if event.left:
            self.counts.in_doubt[message.key] = None
        elif event.in_progress:
            self._staging.came(event.message_id)
        self.pending.append(message)

    def adopt(self, direct: FastPathUnit) -> None:
        """Continue a unit of the fast path as an ordinary unit."""
        arrival = MessageArrived(delivery=direct.delivery, message_id=direct.message_id, group=direct.group)
        message = InFlightMessage(arrival, direct.message_id, counted=Counted.SEEN, calls=1)
        phase, call = (Phase.COMMITTING, None) if direct.committing else (Phase.HANDLING, direct.call)
        unit = Unit(direct.unit, phase, members=[message], call=call, calls=[direct.call])
        self.by_number[unit.number] = unit
        self._calls[direct.call] = unit, message
        if direct.group:
            self.pending.claim(unit, message)
        if self._timeout is not None:
            self._timers.due[TimerKind.TIMEOUT, unit.number] = direct.began + self._timeout

    def duplicate_dropped(self, message_id: str | None) -> None:
        """Record that a message from the in-progress queue has arrived and is not accepted."""
        self._staging.came(message_id)

    def returned_to_broker(self, event: MessageArrived) -> None:
        """Record that a message was returned to the broker without being accepted."""
        self.counts.given_back([self.counts.receive(event)])

    def drop_waiting(self) -> None:
        """Drop pending messages, because the broker redelivers them."""
        self.counts.given_back(self.pending)
        self.pending.clear()
        self._staging.clear()

    def _fill_room(self, room: Permits) -> None:
        self._report(room)
        if self._gate.open:
            self._fill()
            while self._report(room):  # messages that left their unit at once free permits
                self._fill()
        if not self._gate.open or not (self.pending.offers_front(None) or self._offers_turn(None)):
            room.withdraw()

    def _report(self, room: Permits) -> bool:
        waiting = self._waiting
        taken = self._in_units + waiting
        return room.report(units=len(self.by_number), taken=taken, settled=self._settled, waiting=waiting)

    @property
    def _waiting(self) -> int:
        """Number of messages in transit through the in-progress queue, or received from it and pending."""
        return len(self._staging) + self.pending.in_front if self._settings.in_progress else 0

    def _offers_turn(self, number: int | None) -> bool:
        """Return whether a unit may take a message that isn't in progress yet."""
        settings = self._settings
        # No more messages are put in progress than can be handled at once: the others would be in doubt after
        # a crash.
        full = (
            settings.in_progress
            and self._in_units + self._waiting >= settings.concurrency * settings.batch_size
        )
        return not full and self.pending.offers_turn(number)

    def _fill(self) -> None:
        if not (self.pending.count and self._gate.open):
            return
        units, take = self.by_number, self.pending.take if self._room is None else self._take_with_permit
        if self._batches:
            for unit in tuple(units.values()):
                if unit.phase is not Phase.COLLECTING:
                    continue
                if (message := take(unit.number)) is not None:
                    self._timers.due.pop((TimerKind.IDLE, unit.number), None)
                    unit.phase = Phase.TAKING
                    self._take(unit, message)
                elif self._is_full():
                    self._end_batch(unit)
        while self.pending.count and len(units) < self._concurrency:
            if (message := take(None)) is None:
                return
            unit = Unit(self.next_number())
            units[unit.number] = unit
            self._take(unit, message)

    def _is_full(self) -> bool:
        """Return whether pending messages and messages of units use up `batch_bytes`.

        No further message is then received, so a batch that can't take a pending message has to end.
        """
        # Messages in progress are received even if that memory is used up.
        if self._settings.in_progress or not self.pending.count:
            return False
        taken = sum(
            unit.size + (0 if unit.current is None else unit.current.arrival.size)
            for unit in self.by_number.values()
            if unit.prospect is not Prospect.LOST
        )
        return self.pending.size + taken >= self._settings.batch_bytes

    def _take_with_permit(self, number: int | None) -> InFlightMessage | None:
        """Return the next message for a unit, if the limits allow it, else `None`.

        Args:
            number: Number of the unit; `None` for a new unit.
        """
        room = self._room
        if room is not None:
            in_front = self.pending.offers_front(number)
            if not in_front and not self._offers_turn(number):
                return None
            counted = in_front and self._settings.in_progress
            if not room.admit(unit=number is None, message=not counted):
                return None
        return self.pending.take(number)

    # -- one message: from its turn to the handler ---------------------------------------------------------

    def _take(self, unit: Unit, message: InFlightMessage) -> None:
        unit.current = message
        arrival = message.arrival
        if self._batches or arrival.group:
            self.pending.claim(unit, message)
        if self._settings.in_progress and not (
            arrival.in_progress or arrival.unsubscribed or arrival.undecodable is not None
        ):
            self._staging.begin(arrival.message_id)
            self._settle(unit, message, Stage(unit=self.next_number(), delivery=arrival.delivery))
            return
        if message.counted not in COUNTED:
            if self._settings.record_attempts and arrival.message_id is not None:
                unit.phase = Phase.RECORDING
                if arrival.delivery not in self._recording:  # otherwise the answer is still to come
                    self._recording[arrival.delivery] = message
                    self._decide(RecordAttempt(delivery=arrival.delivery, message_id=arrival.message_id))
                return
            self.counts.count(message)
        self._act(unit, message)

    def recorded(self, event: AttemptRecorded | FoundInDoubt) -> None:
        """Continue with a message after its attempt was stored, if its unit is still waiting."""
        asked = self._answered(event.delivery)
        if (unit := self._unit_recording(event.delivery)) is not None and (message := unit.current):
            self.counts.recorded(message, event.attempt)
            if isinstance(event, FoundInDoubt):
                message.condition = Condition.IN_DOUBT
                self._tracker.note(message.key, failure=IN_DOUBT)
            elif event.in_doubt:
                self.counts.in_doubt[message.key] = None
            self._act(unit, message)
        elif asked is not None:
            self.counts.attempt_unused(asked)

    def _unit_recording(self, delivery: int) -> Unit | None:
        """Return the unit that waits for this delivery's attempt to be recorded."""
        for unit in self.by_number.values():
            if unit.phase is Phase.RECORDING and unit.current and unit.current.arrival.delivery == delivery:
                return unit
        return None

    def _answered(self, delivery: int) -> InFlightMessage | None:
        """Pop the message whose attempt was being recorded, even if no unit is waiting for it."""
        return self._recording.pop(delivery, None) or self._overdue.pop(delivery, None)

    def handled_before(self, event: FoundHandled) -> None:
        """Settle a message without delivering it, because the store shows that it was handled before."""
        if (asked := self._answered(event.delivery)) is not None:
            self.counts.attempt_unused(asked)
        if (unit := self._unit_recording(event.delivery)) is not None and unit.current is not None:
            self._carry_out(unit, unit.current, Discard(repeated=True), UNSEEN)

    def not_recorded(self, event: AttemptNotRecorded) -> None:
        """Retry storing an attempt a little later: no message is delivered without a stored attempt."""
        self._answered(event.delivery)
        if (unit := self._unit_recording(event.delivery)) is not None and unit.current is not None:
            why = f"its attempt could not be recorded ({event.failure.message}); retrying"
            # The attempt log warns once.
            self._log(LogLevel.DEBUG, f"message {unit.current.name}: {why}")
            self._wait_a_moment(unit)

    def _wait_a_moment(self, unit: Unit) -> None:
        unit.phase = Phase.WAITING
        self._timers.set(TimerKind.SLICE, unit.number, TRY_AGAIN)

    def _act(self, unit: Unit, message: InFlightMessage) -> None:
        step: Step = HAND_OVER
        state = UNSEEN
        if (
            message.seen
            or not self._delivers_first
            or message.condition is not Condition.DELIVERABLE
            or message.key in self._known
        ):
            settings, state = self._settings, self._tracker.state(message.key, message.seen)
            step = next_step(message, state, settings, self._chance)
            if isinstance(step, Transfer) and (moves := self.counts.failed_moves.get(message.key)):
                step, text = unless_exhausted(step, message, state, settings, self._chance, moves=moves)
                if text is not None:
                    self._warn(message, text)
                    if settings.move_retries is not None and not settings.limbo:
                        message.moves_failed = moves.failed
        self._carry_out(unit, message, step, state)

    def _carry_out(self, unit: Unit, message: InFlightMessage, step: Step, state: MessageState) -> None:
        match step:
            case _ if unit.prospect >= Prospect.ROLLBACK or not self._gate.open:
                self._put_back(unit)
            case HandOver():
                self._hand_over(unit, message, state)
            case Pause(pause=pause, park=False):
                self._pause(unit, message, pause)
            case Pause() | Transfer() | Discard() | Keep() if (
                unit.members and message.arrival.consumer is not None
            ):
                # The members are settled first: acknowledging this message would settle them too.
                unit.prospect = max(unit.prospect, Prospect.FULL)
                self._put_back(unit)
            case Pause() | Transfer() | Discard():
                moves = self.counts.failed_moves.get(message.key, NO_MOVES)
                self._settle(
                    unit,
                    message,
                    settling(step, self.next_number(), message, state, self._settings, moves=moves),
                )
            case Retry():
                self._wait_a_moment(unit)
            case Keep():
                self._log(
                    LogLevel.ERROR,
                    f"message {message.name} can't be delivered or moved; it stays on the queue, "
                    "unacknowledged",
                )
                self.counts.failed_moves.pop(message.key, None)
                self.counts.given_back([message])
                self._decide(Leave(delivery=message.arrival.delivery))
                self._leave(unit)
            case _:
                assert_never(step)

    def _settle(self, unit: Unit, message: InFlightMessage, decision: TakeOut) -> None:
        unit.phase = Phase.SETTLING
        self._settling[decision.unit] = unit, message, decision
        self._decide(decision)

    def _pause(self, unit: Unit, message: InFlightMessage, pause: timedelta) -> None:
        if pause >= _SECOND and not pause % _SECOND:
            text = f"redelivery {message.seen} is delayed for {pause // _MILLISECOND} ms"
            self._log(LogLevel.INFO, f"message {message.name}: {text}")
        unit.left = pause - unit.waited
        unit.waited = max(unit.waited, pause)
        self._next_slice(unit, message)

    def _next_slice(self, unit: Unit, message: InFlightMessage) -> None:
        piece = next(slices(unit.left), None)
        if piece is None:
            message.served = True
            self._carry_out(unit, message, HAND_OVER, self._tracker.state(message.key, message.seen))
            return
        unit.phase = Phase.WAITING
        unit.left -= piece
        self._timers.set(TimerKind.SLICE, unit.number, piece)
        self._decide(Wait(delivery=message.arrival.delivery, pause=piece, left=unit.left))

    def _hand_over(self, unit: Unit, message: InFlightMessage, state: MessageState) -> None:
        settings, counts, members = self._settings, self.counts, unit.members
        if not members:
            if self._timeout is not None:
                self._timers.due[TimerKind.TIMEOUT, unit.number] = self._timers.now + self._timeout
            if self._batches and (flush := settings.longest_batch) is not None:
                self._timers.set(TimerKind.FLUSH, unit.number, flush)
        unit.current = None
        members.append(message)
        unit.size += message.arrival.size
        message.calls += 1
        if counts.failing and not message.seen:
            counts.failing.clear()
        if (moves := counts.failed_moves.get(message.key)) is not None:
            counts.failed_moves[message.key] = replace(moves, delivered=True)
        self._decide(
            Deliver(
                call=self._call(unit, message, Phase.HANDLING),
                unit=unit.number,
                delivery=message.arrival.delivery,
                seen=message.seen,
                batch_index=len(members) - 1,
                in_doubt=message.key in counts.in_doubt,
                state=state,
            )
        )

    def _call(self, unit: Unit, message: InFlightMessage | None, phase: Phase) -> int:
        """Begin a handler call, and return its number.

        With hold-until-ack, the unit can't end before the message of the call is acknowledged.

        Source: J200.
        """
        call = self.next_number()
        unit.phase = phase
        unit.call = call
        unit.calls.append(call)
        self._calls[call] = unit, message
        if self._settings.hold_until_ack:
            unit.unacknowledged.add(call)
        return call

    # -- handler calls -------------------------------------------------------------------------------------

    def returned(self, event: HandlerReturned) -> None:
        """Handle the return of a handler."""
        found = self._calls.get(event.call)
        if found is not None and found[0].call == event.call:
            found[0].call = None
            self._go_on(found[0])

    def not_returned(self, event: HandlerRaised | HandlerNotCalled) -> None:
        """Handle an exception raised by a handler, or the report that a handler could not be called."""
        unit, message = self._calls.get(event.call, (None, None))
        if unit is None or unit.call != event.call:
            return
        if isinstance(event, HandlerRaised):
            # The end of a batch fails for all that were handed over, and only for those.
            for each in unit.called if message is None else (message,):
                self._tracker.note(each.key, failure=event.failure)
            if message is not None:
                retryable = self._non_retryable.isdisjoint(event.failure.class_names)
                message.condition = Condition.DELIVERABLE if retryable else Condition.POISON
        elif message is not None:
            unit.uncalled.append(message)
            message.calls -= 1
        unit.prospect = max(unit.prospect, Prospect.ROLLBACK)
        unit.unacknowledged.discard(event.call)
        unit.call = None
        self._go_on(unit)

    def rollback_asked(self, event: RollbackAsked) -> None:
        """Handle a rollback request, by the handler or by a thread to which the handler passed the message.

        A batch ends at once.

        Source: J202.
        """
        found = self._calls.get(event.call)
        if found is not None and found[0].phase is not Phase.COMMITTING:
            found[0].prospect = max(found[0].prospect, Prospect.ROLLBACK)
            self._hurry(found[0])

    def acknowledged(self, event: Acknowledged) -> None:
        """Handle the acknowledgement of a message that hold-until-ack waits for."""
        if (found := self._calls.get(event.call)) is not None:
            unit = found[0]
            unit.unacknowledged.discard(event.call)
            if unit.phase is Phase.HOLDING and not unit.unacknowledged:
                self._finish(unit)

    # -- how a unit goes on and ends -----------------------------------------------------------------------

    def _go_on(self, unit: Unit) -> None:
        """Continue a unit after one of its messages was handled or taken out of the unit."""
        if not unit.members:
            self._end(unit)
        elif not self._batches or unit.phase is Phase.ENDING:
            self._finish(unit)
        elif unit.prospect >= Prospect.FULL or not self._gate.open or self._has_all(unit):
            self._end_batch(unit)
        else:
            unit.phase = Phase.COLLECTING
            self._timers.set(TimerKind.IDLE, unit.number, self._settings.batch_idle)

    def _has_all(self, unit: Unit) -> bool:
        settings = self._settings
        return len(unit.members) >= settings.batch_size or unit.size >= settings.batch_bytes

    def _leave(self, unit: Unit) -> None:
        """Continue a unit without its current message, which was not delivered."""
        unit.current = None
        self._timers.due.pop((TimerKind.SLICE, unit.number), None)
        self._go_on(unit)

    def _put_back(self, unit: Unit) -> None:
        """Put the current message back to the front of the pending queue, and continue without it."""
        if unit.current is not None:
            self.pending.push_front([unit.current])
        self._leave(unit)

    def _hurry(self, unit: Unit) -> None:
        """End the delay or the batch of a unit, which takes no more messages."""
        if unit.phase in {Phase.RECORDING, Phase.WAITING}:
            self._put_back(unit)
        elif unit.phase is Phase.COLLECTING:
            self._end_batch(unit)

    def _end_batch(self, unit: Unit) -> None:
        """Deliver EndOfBatch, also before a rollback.

        Source: J185.
        """
        self._timers.due.pop((TimerKind.IDLE, unit.number), None)
        self._timers.due.pop((TimerKind.FLUSH, unit.number), None)
        rollback = unit.prospect >= Prospect.ROLLBACK
        call = self._call(unit, None, Phase.ENDING)
        size = len(unit.members)
        self._decide(DeliverEndOfBatch(call=call, unit=unit.number, batch_index=size, rollback=rollback))

    def _finish(self, unit: Unit) -> None:
        """Commit or roll back a unit, or hold it until all messages are acknowledged."""
        if unit.unacknowledged and unit.prospect < Prospect.EXPIRED:
            if not self._gate.stopping:
                unit.phase = Phase.HOLDING
                return
            unit.prospect = max(unit.prospect, Prospect.ROLLBACK)  # J198
        if unit.prospect >= Prospect.ROLLBACK:
            self._decide(RollBackUnit(unit=unit.number))
            self._redeliver(unit)
            return
        unit.phase = Phase.COMMITTING
        acknowledge = tuple(map(_NUMBER, unit.members))
        self._decide(CommitUnit(unit=unit.number, acknowledge=acknowledge))

    def _redeliver(self, unit: Unit) -> None:
        """End the unit; put its messages in front of the pending queue unless the broker redelivers them."""
        self.counts.to_come_again(unit.called)
        if unit.prospect is Prospect.LOST:
            self.counts.given_back(unit.uncalled)
        else:
            self.pending.push_front(unit.members)
        self._end(unit)

    def _end(self, unit: Unit) -> None:
        """End the unit, and remove its calls, timers and reservations."""
        unit.phase = Phase.OVER
        del self.by_number[unit.number]
        for call in unit.calls:
            del self._calls[call]
        if due := self._timers.due:
            for kind in _UNIT_TIMERS:
                due.pop((kind, unit.number), None)
        if self._batches or self.pending.claims:
            self.pending.release(unit)

    # -- outcomes of units ---------------------------------------------------------------------------------

    def _committing(self, number: int) -> Unit | None:
        unit = self.by_number.get(number)
        return unit if unit is not None and unit.phase is Phase.COMMITTING else None

    def committed(self, event: UnitCommitted) -> None:
        """Handle the successful commit of a unit."""
        unit = self.by_number.get(event.unit)
        if unit is not None and unit.phase is Phase.COMMITTING:
            self._settled += len(unit.members)
            self.counts.failing.clear()
            self.counts.forget(unit.members)
            self._end(unit)
        elif event.unit in self._settling:
            unit, message, decision = self._settling.pop(event.unit)
            match decision:
                case Stage():
                    self._staging.end(message.arrival.message_id, done=True)
                case Park():
                    self.counts.not_attempted(message)
                    self.counts.parked(message)
                case MoveMessage() | DeleteMessage():
                    if not (isinstance(decision, DeleteMessage) and decision.repeated):
                        self._settled += 1
                        self.counts.failing.clear()
                    self._log_target(message, decision)
                    self.counts.forget([message])
            self._leave(unit)

    def failed(self, event: UnitFailed) -> None:
        """Handle a refused unit, whose messages are still in flight."""
        if event.unit in self._settling:
            unit, message, decision = self._settling.pop(event.unit)
            self.counts.failing[message.key] = None
            if unit.prospect is Prospect.LOST:
                self._goes_back(message, decision)
                self._leave(unit)
            else:
                self._after_failure(unit, message, decision, event.failure)
        elif (found := self._committing(event.unit)) is not None:
            for message in found.members:
                self._tracker.note(message.key, failure=event.failure)
                self._warn(
                    message,
                    f"its unit of work could not be committed ({event.failure.message}); redelivering it",
                )
            self._redeliver(found)

    def _after_failure(
        self, unit: Unit, message: InFlightMessage, decision: TakeOut, failure: Failure
    ) -> None:
        settings, counts = self._settings, self.counts
        state, moves = (
            self._tracker.state(message.key, message.seen),
            counts.failed_moves.get(message.key, NO_MOVES),
        )
        step, text, counted = after_failure(message, decision, state, settings, self._chance, moves=moves)
        self._warn(message, text.format(failure.message))
        if isinstance(decision, Stage):
            self._staging.end(message.arrival.message_id, done=False)
        if isinstance(decision, MoveMessage):
            if step is None:
                again = replace(decision, unit=self.next_number(), redirect=True, less=0)
                self._settle(unit, message, again)
                return
            if counted:
                if not decision.to_limbo:
                    counts.move_failed(message, lost=False)
                if decision.to_limbo or settings.move_retries is not None:
                    message.moves_failed += 1
        if step is not None:
            self._carry_out(unit, message, step, state)

    def gone(self, event: UnitLost | UnitInDoubt) -> None:
        """Handle a unit whose connection was lost."""
        if event.unit in self._settling:
            unit, message, decision = self._settling.pop(event.unit)
            messages = [message]
            if isinstance(decision, MoveMessage):
                self.counts.move_failed(message, lost=True)
            self._goes_back(message, decision)
        elif (found := self._committing(event.unit)) is not None:
            unit, messages = found, found.members
            self.counts.to_come_again(messages)
        else:
            return
        unit.prospect = Prospect.LOST
        if isinstance(event, UnitInDoubt):
            for each in messages:
                self.counts.in_doubt[each.key] = None
        if unit.phase is Phase.COMMITTING:
            self._end(unit)
        else:
            self._leave(unit)

    def _log_target(self, message: InFlightMessage, decision: MoveMessage | DeleteMessage) -> None:
        if isinstance(decision, MoveMessage):
            targets = ", ".join(map(str, decision.targets))
            if decision.to_limbo:
                targets = f"limbo, to be sent to {targets} later," if targets else "limbo"
            what = f"was moved to {targets}"
        elif not decision.repeated:
            what = "was deleted, as configured in redelivery_handling,"
        else:
            return
        # Those that nobody subscribes to may be nearly all.
        level = LogLevel.DEBUG if message.arrival.unsubscribed else LogLevel.INFO
        times = max(message.seen, message.calls)
        self._log(
            level, f"message {message.name} {what} after {times} {'delivery' if times == 1 else 'deliveries'}"
        )

    def _goes_back(self, message: InFlightMessage, decision: TakeOut) -> None:
        """Record that a message returns to the broker, because a decision to remove it had no effect.

        A move or a deletion counts as an attempt.
        """
        if isinstance(decision, MoveMessage | DeleteMessage):
            self.counts.to_come_again([message])
        else:
            self.counts.given_back([message])
            if isinstance(decision, Park):
                self.counts.parked(message)

    # -- timers, stops, lost connections -------------------------------------------------------------------

    def timer(self, kind: TimerKind, number: int) -> None:
        """Handle a due timer of a unit."""
        unit = self.by_number[number]
        match kind:
            case TimerKind.SLICE if unit.current is not None:
                if unit.current.moves_failed:
                    self._act(unit, unit.current)
                elif unit.current.counted in COUNTED:
                    self._next_slice(unit, unit.current)
                else:
                    unit.phase = Phase.TAKING
                    self._take(unit, unit.current)
            case TimerKind.IDLE:
                self._end_batch(unit)
            case TimerKind.FLUSH:
                unit.prospect = max(unit.prospect, Prospect.FULL)
                self._hurry(unit)
            case TimerKind.TIMEOUT if unit.phase is not Phase.COMMITTING:
                self._too_long(unit)
                unit.prospect = max(unit.prospect, Prospect.EXPIRED)
                self._hurry(unit)
                if unit.phase is Phase.HOLDING:
                    self._finish(unit)

    def _too_long(self, unit: Unit) -> None:
        timeout = self._settings.transaction_timeout or timedelta(0)
        text = f"took longer than transaction_timeout ({timeout.total_seconds():g} s)"
        self._log(
            LogLevel.WARNING, f"a unit of work of {len(unit.members)} message(s) {text}; rolling it back"
        )
        failure = Failure(class_names=(), message=f"its unit of work {text}")
        self.counts.took_too_long(unit.members, failure)

    def interrupt(self) -> None:
        """End delays and open batches; let handlers and commits finish.

        During a stop, this rolls back units that only wait for acknowledgements.

        Source: J198.
        """
        for unit in tuple(self.by_number.values()):
            self._hurry(unit)
            if unit.phase is Phase.HOLDING and self._gate.stopping:
                self._finish(unit)

    def connection_lost(self) -> None:
        """Roll back all units; a unit with a running handler exists until the handler returns."""
        self.drop_waiting()
        for unit in tuple(self.by_number.values()):
            unit.prospect = Prospect.LOST
            self.pending.claim_messages(unit)
            if unit.phase in {Phase.RECORDING, Phase.WAITING}:
                if unit.current is not None:
                    self.counts.given_back([unit.current])
                self._leave(unit)
            elif unit.phase is Phase.HOLDING:
                self._finish(unit)
            else:
                self._hurry(unit)

    def abandon(self) -> None:
        """Roll back all units and ignore their further events."""
        for unit in tuple(self.by_number.values()):
            if unit.members and unit.phase is not Phase.COMMITTING:
                self._decide(RollBackUnit(unit=unit.number))
            self.counts.to_come_again(unit.called)
            self.counts.given_back(unit.uncalled)
            self._end(unit)
        for _, message, decision in self._settling.values():
            self._goes_back(message, decision)
        self._settling.clear()
        self._overdue |= self._recording
        self._recording.clear()
        self.drop_waiting()

    def _warn(self, message: InFlightMessage, what: str) -> None:
        self._log(LogLevel.WARNING, f"message {message.name}: {what}")

    def _log(self, level: LogLevel, text: str) -> None:
        self._decide(Log(level=level, text=text, of_delivery=True))
