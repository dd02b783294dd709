"""The part of the delivery machine for messages and units of work, independent of connections."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import assert_never

from airflow_provider_jmsjca.core.delivery.concurrency import Permits
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
from airflow_provider_jmsjca.core.delivery.events import MessageArrived
from airflow_provider_jmsjca.core.delivery.in_flight import (
    FAILING_LIMIT,
    DeliveryCounts,
    Gate,
    InFlightMessage,
    InProgressTracking,
    PendingQueue,
    Phase,
    TimerKind,
    Timers,
    Unit,
    UnitScheduler,
    UnitTable,
)
from airflow_provider_jmsjca.core.delivery.settings import DeliverySettings
from airflow_provider_jmsjca.core.delivery.steps import (
    HAND_OVER,
    Discard,
    HandOver,
    Keep,
    Pause,
    Retry,
    Settlement,
    Step,
    TakeOut,
    Transfer,
    next_step,
)
from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.core.redelivery import RedeliveryTracker, slices
from airflow_provider_jmsjca.errors import PoisonMessageError

_UNIT_TIMERS = (TimerKind.SLICE, TimerKind.IDLE, TimerKind.FLUSH, TimerKind.TIMEOUT)
_POISON = f"{PoisonMessageError.__module__}.{PoisonMessageError.__qualname__}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """Batches, commits and rollbacks.

    Source: J183-J203.
    """

    settings: DeliverySettings
    gate: Gate
    line: PendingQueue
    units: UnitTable
    delivery_counts: DeliveryCounts
    timers: Timers
    decide: Callable[[Decision], None]

    def call(self, unit: Unit, message: InFlightMessage | None, phase: Phase) -> int:
        """Begin a handler call; with hold-until-ack it must be acknowledged (J200)."""
        call = self.units.call(unit, message, phase)
        if self.settings.hold_until_ack:
            unit.unacknowledged.add(call)
        return call

    def go_on(self, unit: Unit) -> None:
        """Continue a unit after a message was handled or left it."""
        size = self.settings.batch_size
        if not unit.members:
            self.end(unit)
        elif size == 1 or unit.phase is Phase.ENDING:
            self.finish(unit)
        elif unit.rollback or unit.full or not self.gate.open or self._has_all(unit):
            self.end_batch(unit)
        else:
            unit.phase = Phase.COLLECTING
            self.timers.set(TimerKind.IDLE, unit.number, self.settings.batch_idle)

    def _has_all(self, unit: Unit) -> bool:
        settings = self.settings
        return len(unit.members) >= settings.batch_size or unit.size >= settings.batch_bytes

    def leave(self, unit: Unit) -> None:
        """Go on without the message that the unit has taken and not delivered."""
        unit.current = None
        self.timers.clear(TimerKind.SLICE, unit.number)
        self.go_on(unit)

    def put_back(self, unit: Unit) -> None:
        """Put that message back to the front of the line, and go on without it."""
        if unit.current is not None:
            self.line.push_front([unit.current])
        self.leave(unit)

    def hurry(self, unit: Unit) -> None:
        """Let a unit take no more: end its delay and its batch."""
        if unit.phase in {Phase.RECORDING, Phase.WAITING}:
            self.put_back(unit)
        elif unit.phase is Phase.COLLECTING:
            self.end_batch(unit)

    def end_batch(self, unit: Unit) -> None:
        """Deliver EndOfBatch, also before a rollback (J185)."""
        self.timers.clear(TimerKind.IDLE, unit.number)
        self.timers.clear(TimerKind.FLUSH, unit.number)
        call = self.call(unit, None, Phase.ENDING)
        size = len(unit.members)
        self.decide(DeliverEndOfBatch(call=call, unit=unit.number, batch_index=size, rollback=unit.rollback))

    def finish(self, unit: Unit) -> None:
        """Commit or roll back, or hold the unit until all is acknowledged."""
        if unit.unacknowledged and not (unit.lost or unit.expired):
            if not self.gate.stopping:
                unit.phase = Phase.HOLDING
                return
            unit.rollback = True  # J198
        if unit.lost or unit.rollback:
            self.decide(RollBackUnit(unit=unit.number))
            self.redeliver(unit)
            return
        unit.phase = Phase.COMMITTING
        acknowledge = tuple(message.delivery for message in unit.members)
        self.decide(CommitUnit(unit=unit.number, acknowledge=acknowledge))

    def redeliver(self, unit: Unit) -> None:
        """End the unit; its messages are next again, unless the broker has them back."""
        self.delivery_counts.to_come_again([each for each in unit.members if not each.uncalled])
        uncalled = [each for each in unit.members if each.uncalled]
        for message in uncalled:
            message.uncalled = False
        if unit.lost:
            self.delivery_counts.given_back(uncalled)
        else:
            self.line.push_front(unit.members)
        self.end(unit)

    def end(self, unit: Unit) -> None:
        """End the unit, and with it its calls, timers and claims."""
        self.units.close(unit)
        for kind in _UNIT_TIMERS:
            self.timers.clear(kind, unit.number)
        self.line.release(unit)


class HandlerCalls:
    """Handler calls by number, from when they began until their unit of work is over.

    Events of calls that are over are ignored.

    Args:
        units: Where the calls are found.
        delivery_counts: Records failures.
        completion: Says how the unit of work goes on.
        non_retryable: Names of exception classes after which a message isn't delivered again.

    Source: J192, J197, J200-J202.
    """

    def __init__(
        self,
        units: UnitTable,
        delivery_counts: DeliveryCounts,
        completion: Completion,
        non_retryable: frozenset[str],
    ) -> None:
        self._units = units
        self._delivery_counts = delivery_counts
        self._completion = completion
        self._non_retryable = non_retryable | {_POISON}

    def returned(self, call: int) -> None:
        """The handler returned."""
        unit, _ = self._units.of_call(call)
        if unit is not None and unit.call == call:
            unit.call = None
            self._completion.go_on(unit)

    def raised(self, call: int, failure: Failure) -> None:
        """The handler raised."""
        unit, message = self._units.of_call(call)
        if unit is None or unit.call != call:
            return
        # The end of a batch fails for all that were handed over, and only for those.
        failing = [each for each in unit.members if not each.uncalled] if message is None else [message]
        self._delivery_counts.failed(failing, failure)
        if message is not None:
            message.poison = failure.is_any(self._non_retryable)
        unit.rollback = True
        unit.unacknowledged.discard(call)
        self.returned(call)

    def not_called(self, call: int) -> None:
        """The handler could not be called."""
        unit, message = self._units.of_call(call)
        if unit is None or unit.call != call:
            return
        if message is not None:
            message.uncalled = True
            message.calls -= 1
        unit.rollback = True
        unit.unacknowledged.discard(call)
        self.returned(call)

    def rollback_asked(self, call: int) -> None:
        """The handler, or a thread it left the message to, wants no commit; a batch ends at once (J202)."""
        unit, _ = self._units.of_call(call)
        if unit is not None and unit.phase is not Phase.COMMITTING:
            unit.rollback = True
            self._completion.hurry(unit)

    def acknowledged(self, call: int) -> None:
        """One of the messages that hold-until-ack waits for is done."""
        unit, _ = self._units.of_call(call)
        if unit is not None:
            unit.unacknowledged.discard(call)
            if unit.phase is Phase.HOLDING and not unit.unacknowledged:
                self._completion.finish(unit)

    def key_of(self, call: int) -> str | None:
        """Return the tracker's key for the message of a call; `None` if the call is over or has none."""
        _, message = self._units.of_call(call)
        return None if message is None else message.key


TRY_AGAIN = timedelta(seconds=1)
_SECOND = timedelta(seconds=1)
_MILLISECOND = timedelta(milliseconds=1)
IN_DOUBT = Failure(
    class_names=("InDoubt",), message="an earlier run was handling it, and has not said how that ended"
)


class Processing:
    """In-flight messages and their units of work.

    At most `concurrency` units exist at once. Each takes messages one after the other. It has the attempt
    recorded, then carries out the redelivery handling for the message's count: it delivers the message, or
    has it moved, deleted or parked by a separate unit. A rolled-back message goes to the front of the pending
    queue and is taken again.

    Args:
        settings: Rules of the activation spec.
        tracker: Counts deliveries.
        timers: Sets delays and deadlines.
        chance: Returns a random number from 0 to 1.
        decide: Receives each decision.
        gate: Permissions of the activation, shared with the machine that changes them.
        room: This activation's part of the work, where several share it.
        take_back: Undoes the count of an unused delivery, by key and source.

    Attributes:
        calls: Handler calls under way.
        next_number: Returns a number for a unit or a call.
        remembered: Views of the ids of messages with state.
        failing: As of `DeliveryCounts`.
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
        self._gate = gate
        self._settled = 0
        self._settings = settings
        self._delivery_counts = DeliveryCounts(tracker, take_back, counts_repeats=settings.counts_repeats)
        self._timers = timers
        self._chance = chance
        self._decide = decide
        self._line = PendingQueue(len(settings.sources), settings.quantity)
        self._units = UnitTable()
        self.next_number = self._units.next_number
        self.remembered = self._delivery_counts.remembered
        self.failing = self._delivery_counts.failing
        self._completion = Completion(
            settings=settings,
            gate=gate,
            line=self._line,
            units=self._units,
            delivery_counts=self._delivery_counts,
            timers=timers,
            decide=decide,
        )
        self.calls = HandlerCalls(
            self._units, self._delivery_counts, self._completion, settings.non_retryable
        )
        self._staging = InProgressTracking()
        self._filling = UnitScheduler(
            settings=settings,
            gate=gate,
            line=self._line,
            units=self._units,
            timers=timers,
            room=room,
            staging=self._staging,
            take=self._take,
            end_batch=self._completion.end_batch,
        )
        self._taking_out = Settlement(
            settings=settings,
            units=self._units,
            delivery_counts=self._delivery_counts,
            staging=self._staging,
            chance=chance,
            decide=decide,
            warn=self._warn,
        )
        self._settling = self._taking_out.under_way
        self._warned_of_missing_id = False
        self._recording: dict[int, InFlightMessage] = {}
        self._overdue: dict[int, InFlightMessage] = {}

    @property
    def idle(self) -> bool:
        """No unit is under way, and the store has answered for every attempt."""
        return not (self._units or self._recording)

    @property
    def under_way(self) -> int:
        """Number of units of work."""
        return len(self._units)

    @property
    def is_clear(self) -> bool:
        """Whether messages may be taken, and none is waiting or may have to wait for another."""
        return self._gate.open and not (len(self._line) or self._line.has_claims)

    @property
    def in_flight(self) -> int:
        """Number of messages received and neither settled nor lost."""
        return len(self._line) + self._units.in_flight + len(self._staging)

    @property
    def handles_others(self) -> bool:
        """Whether handlers have messages that aren't among the failing ones."""
        if len(self.failing) >= FAILING_LIMIT:  # further failing messages are not tracked
            return False
        return any(message.key not in self.failing for unit in self._units for message in unit.members)

    @property
    def has_begun_waiting(self) -> bool:
        """Whether a message waits that was in a unit before."""
        return any(self._delivery_counts.knows(message.key) for message in self._line)

    def is_open(self, unit: int) -> bool:
        """Whether a unit of work is neither over nor being committed."""
        return unit in self._units and self._units.committing(unit) is None

    def arrived(self, event: MessageArrived) -> None:
        """Accept an arrived message."""
        if event.message_id is None and not self._warned_of_missing_id:
            self._warned_of_missing_id = True
            self._log(
                LogLevel.WARNING,
                "a message without id came: such are counted only while in hand "
                "(message_id_fallback says what stands for it)",
            )
        message = self._delivery_counts.receive(event)
        if event.left:
            self._delivery_counts.doubt([message])
        elif event.in_progress:
            self._staging.came(event.message_id)
        self._line.append(message)

    def adopt(self, unit: Unit, began: float) -> None:
        """Add an existing unit of work of one message, handed over at the time `began`."""
        self._units.adopt(unit)
        self._line.claim(unit, unit.members[0])
        if (timeout := self._settings.transaction_timeout) is not None:
            self._timers.set_for(TimerKind.TIMEOUT, unit.number, began + timeout.total_seconds())

    def duplicate_dropped(self, message_id: str | None) -> None:
        """Record that a message from the in-progress queue has arrived and is not accepted."""
        self._staging.came(message_id)

    def returned_to_broker(self, event: MessageArrived) -> None:
        """Record that a message was returned to the broker without being accepted."""
        self._delivery_counts.given_back([self._delivery_counts.receive(event)])

    def fill(self) -> None:
        """Give waiting messages to the units that can take them."""
        self._filling.fill(self._settled)

    def wants_message(self, beside: int) -> bool:
        """Return whether no message waits and a unit could take one; `beside` further units are under way."""
        return self._filling.wants_message(beside)

    def drop_waiting(self) -> None:
        """Let go of messages that no unit has taken: the broker has them back."""
        self._delivery_counts.given_back(self._line)
        self._line.clear()
        self._staging.clear()

    # -- one message: from its turn to the handler --------------------------------------------------------

    def _take(self, unit: Unit, message: InFlightMessage) -> None:
        unit.current = message
        self._line.claim(unit, message)
        if self._settings.in_progress and message.is_to_be_staged:
            self._taking_out.stage(unit, message)
            return
        if self._settings.record_attempts and message.message_id is not None and not message.counted:
            unit.phase = Phase.RECORDING
            if message.delivery not in self._recording:  # otherwise the answer is still to come
                self._recording[message.delivery] = message
                self._decide(RecordAttempt(delivery=message.delivery, message_id=message.message_id))
            return
        if not message.counted:
            self._delivery_counts.count(message)
        self._act(unit, message)

    def recorded(
        self, delivery: int, attempt: int, *, in_doubt: bool = False, set_aside: bool = False
    ) -> None:
        """Continue with a message after its attempt was stored, if its unit is still waiting.

        Args:
            delivery: The message's number.
            attempt: Number of the attempt.
            in_doubt: The previous attempt has an unknown outcome.
            set_aside: The message goes to limbo, because the previous attempt has an unknown outcome.
        """
        asked = self._answered(delivery)
        if (unit := self._units.recording(delivery)) is not None and (message := unit.current) is not None:
            self._delivery_counts.recorded(message, attempt)
            if in_doubt:
                self._delivery_counts.doubt([message])
            if set_aside:
                message.set_aside = True
                self._delivery_counts.failed([message], IN_DOUBT)
            self._act(unit, message)
        elif asked is not None:
            self._attempt_unused(asked)

    def _answered(self, delivery: int) -> InFlightMessage | None:
        """Pop the message whose attempt was being recorded, even if no unit is waiting for it."""
        return self._recording.pop(delivery, None) or self._overdue.pop(delivery, None)

    def _attempt_unused(self, message: InFlightMessage) -> None:
        message.stored = True
        self._delivery_counts.not_attempted(message)

    def handled_before(self, delivery: int) -> None:
        """Settle a message that a handler is done with, as is stored, instead of delivering it."""
        if (asked := self._answered(delivery)) is not None:
            self._attempt_unused(asked)
        if (unit := self._units.recording(delivery)) is not None and unit.current is not None:
            self._carry_out(unit, unit.current, Discard(repeated=True))

    def not_recorded(self, delivery: int, failure: Failure) -> None:
        """Try to store the attempt again a little later: a message is never handed over uncounted."""
        self._answered(delivery)
        if (unit := self._units.recording(delivery)) is not None and unit.current is not None:
            why = f"its attempt could not be recorded ({failure.message}); it waits"
            self._log(LogLevel.DEBUG, f"message {unit.current.name}: {why}")  # the ledger says it once
            self._wait_a_moment(unit)

    def _wait_a_moment(self, unit: Unit) -> None:
        unit.phase = Phase.WAITING
        self._timers.set(TimerKind.SLICE, unit.number, TRY_AGAIN)

    def _act(self, unit: Unit, message: InFlightMessage) -> None:
        state = self._delivery_counts.state(message)
        step = next_step(message, state, self._settings, self._chance)
        if isinstance(step, Transfer):
            step = self._taking_out.unless_exhausted(step, message, state)
        self._carry_out(unit, message, step)

    def _carry_out(self, unit: Unit, message: InFlightMessage, step: Step) -> None:
        match step:
            case _ if unit.rollback or not self._gate.open:
                self._completion.put_back(unit)
            case HandOver():
                self._hand_over(unit, message)
            case Pause(pause=pause, park=False):
                self._pause(unit, message, pause)
            case Pause() | Transfer() | Discard() | Keep() if unit.members and message.consumer is not None:
                # The members are settled first: acknowledging this message would settle them too.
                unit.full = True
                self._completion.put_back(unit)
            case Pause() | Transfer() | Discard():
                self._taking_out.begin(unit, message, step)
            case Retry():
                self._wait_a_moment(unit)
            case Keep():
                self._log(
                    LogLevel.ERROR, f"message {message.name} can neither be delivered nor moved: it stays"
                )
                self._delivery_counts.left(message)
                self._delivery_counts.given_back([message])
                self._decide(Leave(delivery=message.delivery))
                self._completion.leave(unit)
            case _:
                assert_never(step)

    def _pause(self, unit: Unit, message: InFlightMessage, pause: timedelta) -> None:
        if pause >= _SECOND and not pause % _SECOND:
            text = f"redelivery {message.seen} is delayed for {pause // _MILLISECOND} ms"
            self._log(LogLevel.INFO, f"message {message.name}: {text}")
        unit.slices = list(slices(pause - unit.waited))
        unit.waited = max(unit.waited, pause)
        self._next_slice(unit, message)

    def _next_slice(self, unit: Unit, message: InFlightMessage) -> None:
        if not unit.slices:
            message.served = True
            self._carry_out(unit, message, HAND_OVER)
            return
        unit.phase = Phase.WAITING
        piece = unit.slices.pop(0)
        self._timers.set(TimerKind.SLICE, unit.number, piece)
        self._decide(Wait(delivery=message.delivery, pause=piece, left=sum(unit.slices, timedelta(0))))

    def _hand_over(self, unit: Unit, message: InFlightMessage) -> None:
        settings = self._settings
        if not unit.members:
            if settings.transaction_timeout is not None:
                self._timers.set(TimerKind.TIMEOUT, unit.number, settings.transaction_timeout)
            if settings.batch_size > 1 and (flush := settings.longest_batch) is not None:
                self._timers.set(TimerKind.FLUSH, unit.number, flush)
        unit.current = None
        unit.members.append(message)
        unit.size += message.size
        message.calls += 1
        if self.failing and not message.seen:
            self.failing.clear()
        self._delivery_counts.delivered(message)
        self._decide(
            Deliver(
                call=self._completion.call(unit, message, Phase.HANDLING),
                unit=unit.number,
                delivery=message.delivery,
                seen=message.seen,
                batch_index=len(unit.members) - 1,
                in_doubt=self._delivery_counts.is_in_doubt(message),
                state=self._delivery_counts.state(message),
            )
        )

    # -- how units of work came out -----------------------------------------------------------------------

    def committed(self, number: int) -> None:
        """A unit is settled for good."""
        if number in self._settling:
            unit, message, decision = self._settling.pop(number)
            if isinstance(decision, Stage):
                self._staging.end(message.message_id, done=True)
            elif isinstance(decision, Park):
                self._delivery_counts.not_attempted(message)
                self._delivery_counts.parked(message)
            else:
                if not (isinstance(decision, DeleteMessage) and decision.repeated):
                    self._settled += 1
                    self.failing.clear()
                self._log_target(message, decision)
                self._delivery_counts.forget([message])
            self._completion.leave(unit)
        elif (found := self._units.committing(number)) is not None:
            self._settled += len(found.members)
            self.failing.clear()
            self._delivery_counts.forget(found.members)
            self._completion.end(found)

    def failed(self, number: int, failure: Failure) -> None:
        """A unit was refused; its messages are still in hand."""
        if number in self._settling:
            unit, message, decision = self._settling.pop(number)
            self._delivery_counts.fails(message)
            if unit.lost:
                self._goes_back(message, decision)
                self._completion.leave(unit)
            elif (step := self._taking_out.failed(unit, message, decision, failure)) is not None:
                self._carry_out(unit, message, step)
        elif (found := self._units.committing(number)) is not None:
            self._delivery_counts.failed(found.members, failure)
            for message in found.members:
                self._warn(message, f"its unit of work could not be committed ({failure.message})")
            self._completion.redeliver(found)

    def gone(self, number: int, *, in_doubt: bool) -> None:
        """A unit went down with its connection."""
        if number in self._settling:
            unit, message, decision = self._settling.pop(number)
            messages = [message]
            if isinstance(decision, MoveMessage):
                self._delivery_counts.move_failed(message, lost=True)
            self._goes_back(message, decision)
        elif (found := self._units.committing(number)) is not None:
            unit, messages = found, found.members
            self._delivery_counts.to_come_again(messages)
        else:
            return
        unit.lost = unit.rollback = True
        if in_doubt:
            self._delivery_counts.doubt(messages)
        if unit.phase is Phase.COMMITTING:
            self._completion.end(unit)
        else:
            self._completion.leave(unit)

    def _log_target(self, message: InFlightMessage, decision: MoveMessage | DeleteMessage) -> None:
        if isinstance(decision, MoveMessage):
            targets = ", ".join(map(str, decision.targets))
            if decision.to_limbo:
                targets = f"limbo, from where it goes to {targets}," if targets else "limbo"
            what = f"was moved to {targets}"
        elif not decision.repeated:
            what = "was deleted, as the redelivery handling says,"
        else:
            return
        # Those that nobody subscribes to may be nearly all.
        level = LogLevel.DEBUG if message.unsubscribed else LogLevel.INFO
        times = max(message.seen, message.calls)
        self._log(
            level, f"message {message.name} {what} after {times} {'delivery' if times == 1 else 'deliveries'}"
        )

    def _goes_back(self, message: InFlightMessage, decision: TakeOut) -> None:
        """A message goes back to the broker that was to be taken out; a move or a deletion counts."""
        if isinstance(decision, MoveMessage | DeleteMessage):
            self._delivery_counts.to_come_again([message])
        else:
            self._delivery_counts.given_back([message])
            if isinstance(decision, Park):
                self._delivery_counts.parked(message)

    # -- timers, stops, lost connections ------------------------------------------------------------------

    def timer(self, kind: TimerKind, number: int) -> None:
        """A timer of a unit is due."""
        unit = self._units[number]
        match kind:
            case TimerKind.SLICE if unit.current is not None and unit.current.moves_failed:
                self._act(unit, unit.current)
            case TimerKind.SLICE if unit.current is not None and unit.current.counted:
                self._next_slice(unit, unit.current)
            case TimerKind.SLICE if unit.current is not None:
                self._take(unit, unit.current)
            case TimerKind.IDLE:
                self._completion.end_batch(unit)
            case TimerKind.FLUSH:
                unit.full = True
                self._completion.hurry(unit)
            case TimerKind.TIMEOUT if unit.phase is not Phase.COMMITTING:
                self._too_long(unit)
                unit.rollback = unit.expired = True
                self._completion.hurry(unit)
                if unit.phase is Phase.HOLDING:
                    self._completion.finish(unit)

    def _too_long(self, unit: Unit) -> None:
        timeout = self._settings.transaction_timeout or timedelta(0)
        text = f"took longer than transaction_timeout ({timeout.total_seconds():g} s)"
        self._log(
            LogLevel.WARNING, f"a unit of work of {len(unit.members)} message(s) {text}: it is rolled back"
        )
        failure = Failure(class_names=(), message=f"its unit of work {text}")
        self._delivery_counts.took_too_long(unit.members, failure)

    def interrupt(self) -> None:
        """End delays and open batches; let handlers and commits finish.

        A stop rolls back messages that only wait to be acknowledged (J198).
        """
        for unit in self._units:
            self._completion.hurry(unit)
            if unit.phase is Phase.HOLDING and self._gate.stopping:
                self._completion.finish(unit)

    def connection_lost(self) -> None:
        """Roll back all units; those with a running handler count until it returns."""
        self.drop_waiting()
        for unit in self._units:
            unit.lost = unit.rollback = True
            self._line.claim_messages(unit)
            if unit.phase in {Phase.RECORDING, Phase.WAITING}:
                if unit.current is not None:
                    self._delivery_counts.given_back([unit.current])
                self._completion.leave(unit)
            elif unit.phase is Phase.HOLDING:
                self._completion.finish(unit)
            else:
                self._completion.hurry(unit)

    def abandon(self) -> None:
        """Roll back all units and ignore their further events."""
        for unit in self._units:
            if unit.members and unit.phase is not Phase.COMMITTING:
                self._decide(RollBackUnit(unit=unit.number))
            self._delivery_counts.to_come_again(each for each in unit.members if not each.uncalled)
            self._delivery_counts.given_back(each for each in unit.members if each.uncalled)
            self._completion.end(unit)
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
