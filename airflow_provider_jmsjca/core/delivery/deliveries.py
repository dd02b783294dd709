"""The part of the delivery machine that knows messages and units of work, and nothing of connections."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from typing import assert_never

from airflow_provider_jmsjca.core.delivery.decisions import (
    CommitUnit,
    Decision,
    Delete,
    Deliver,
    DeliverEndOfBatch,
    Level,
    Log,
    Move,
    Park,
    RecordAttempt,
    RollBackUnit,
    Wait,
)
from airflow_provider_jmsjca.core.delivery.events import MessageArrived
from airflow_provider_jmsjca.core.delivery.line import Line
from airflow_provider_jmsjca.core.delivery.settings import DeliverySettings
from airflow_provider_jmsjca.core.delivery.steps import (
    Discard,
    HandOver,
    Keep,
    Pause,
    Step,
    Transfer,
    next_step,
    step_after_failure,
)
from airflow_provider_jmsjca.core.delivery.units import InHand, Phase, TimerKind, Timers, Unit
from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.core.redelivery import RedeliveryTracker, slices
from airflow_provider_jmsjca.errors import PoisonMessageError

IN_DOUBT_LIMIT = 5000
RECORD_AGAIN = timedelta(seconds=1)
_POISON = f"{PoisonMessageError.__module__}.{PoisonMessageError.__qualname__}"
_SECOND = timedelta(seconds=1)
_MILLISECOND = timedelta(milliseconds=1)
_UNIT_TIMERS = (TimerKind.SLICE, TimerKind.IDLE, TimerKind.FLUSH, TimerKind.TIMEOUT)


class Deliveries:
    """Messages in hand and the units of work they are in.

    At most `concurrency` units exist at once. Each takes messages one after the other: it has the attempt
    recorded, then does what the redelivery handling says for the message's count, and so delivers it, or has
    it moved, deleted or parked by a unit of its own. What is rolled back goes to the front of the line and is
    taken again.

    Attributes:
        open: Whether messages may be taken from the line.
        stopping: Whether the activation is on its way down.
    """

    def __init__(
        self,
        settings: DeliverySettings,
        tracker: RedeliveryTracker,
        timers: Timers,
        chance: Callable[[], float],
        decide: Callable[[Decision], None],
    ) -> None:
        self.open = False
        self.stopping = False
        self._settings = settings
        self._tracker = tracker
        self._timers = timers
        self._chance = chance
        self._decide = decide
        self._non_retryable = settings.non_retryable | {_POISON}
        self._last_number = 0
        self._line = Line()
        self._units: dict[int, Unit] = {}
        self._calls: dict[int, tuple[Unit, InHand | None]] = {}
        self._settling: dict[int, tuple[Unit, InHand, Move | Delete | Park]] = {}
        self._in_doubt: OrderedDict[str, None] = OrderedDict()
        self._warned_of_missing_id = False

    @property
    def idle(self) -> bool:
        """No unit is under way."""
        return not self._units

    def arrived(self, event: MessageArrived) -> None:
        """Take a message in hand."""
        key = event.message_id
        if key is None:
            key = f"\0{event.delivery}"
            if not self._warned_of_missing_id:
                self._warned_of_missing_id = True
                self._log(Level.WARNING, "a message without id came: such are counted only while in hand")
        before = max((event.delivery_count or 1) - 1, 0)
        served = event.parked is not None and not event.redelivered
        flagged = event.redelivered or before > 0 or key in self._tracker
        if before > 1 or event.parked is not None:
            self._tracker.at_least(key, max(before - 1, event.parked or 0))
        if event.undecodable is not None:
            self._tracker.note(key, failure=event.undecodable)
        self._line.append(
            InHand(
                delivery=event.delivery,
                key=key,
                message_id=event.message_id,
                group=event.group or None,
                flagged=flagged and not served,
                served=served,
                poison=event.undecodable is not None,
                undecodable=event.undecodable is not None,
            )
        )

    def fill(self) -> None:
        """Give waiting messages to the units that can take them."""
        if not self.open or not len(self._line):
            return
        if self._settings.batch_size > 1:
            for unit in [unit for unit in self._units.values() if unit.phase is Phase.COLLECTING]:
                if (message := self._line.take(unit.number)) is not None:
                    self._timers.clear(TimerKind.IDLE, unit.number)
                    self._take(unit, message)
        while len(self._units) < self._settings.concurrency:
            if (message := self._line.take(None)) is None:
                return
            unit = Unit(number=self._next_number())
            self._units[unit.number] = unit
            self._take(unit, message)

    def drop_waiting(self) -> None:
        """Let go of messages that no unit has taken: the broker has them back."""
        self._line.clear()

    # -- one message: from its turn to the handler --------------------------------------------------------

    def _take(self, unit: Unit, message: InHand) -> None:
        unit.current = message
        self._line.claim_group(unit, message)
        if self._settings.record_attempts and not message.counted:
            unit.phase = Phase.RECORDING
            self._decide(RecordAttempt(delivery=message.delivery, message_id=message.message_id))
            return
        if not message.counted:
            message.counted = True
            key = message.key
            message.seen = self._tracker.seen(key) if message.flagged else self._tracker.state(key).seen
        self._act(unit, message)

    def recorded(self, delivery: int, attempt: int) -> None:
        """Go on with a message whose attempt is stored."""
        if (unit := self._recording(delivery)) is not None and (message := unit.current) is not None:
            message.counted = True
            message.seen = attempt - 1
            if message.seen > 0:
                self._tracker.at_least(message.key, message.seen)
            self._act(unit, message)

    def not_recorded(self, delivery: int, failure: Failure) -> None:
        """Try to store the attempt again a little later: a message is never handed over uncounted."""
        if (unit := self._recording(delivery)) is not None and unit.current is not None:
            self._warn(unit.current, f"its attempt could not be recorded ({failure.message}); it waits")
            unit.phase = Phase.WAITING
            self._timers.set(TimerKind.SLICE, unit.number, RECORD_AGAIN)

    def _recording(self, delivery: int) -> Unit | None:
        for unit in self._units.values():
            if unit.phase is Phase.RECORDING and unit.current and unit.current.delivery == delivery:
                return unit
        return None

    def _act(self, unit: Unit, message: InHand) -> None:
        state = self._tracker.state(message.key)
        self._carry_out(unit, message, next_step(message, state, self._settings, self._chance))

    def _carry_out(self, unit: Unit, message: InHand, step: Step) -> None:
        match step:
            case _ if unit.rollback:
                self._put_back(unit)
            case HandOver():
                self._hand_over(unit, message)
            case Pause(pause=pause, park=False):
                self._pause(unit, message, pause)
            case Pause(pause=pause):
                number = self._next_number()
                park = Park(unit=number, delivery=message.delivery, pause=pause, seen=message.seen)
                self._settle(unit, message, park)
            case Transfer(targets=targets):
                state = replace(self._tracker.state(message.key), seen=message.seen)
                number, redirect = self._next_number(), self._settings.redirect
                move = Move(
                    unit=number, delivery=message.delivery, targets=targets, redirect=redirect, state=state
                )
                self._settle(unit, message, move)
            case Discard():
                delete = Delete(unit=self._next_number(), delivery=message.delivery, seen=message.seen)
                self._settle(unit, message, delete)
            case Keep():
                self._log(
                    Level.ERROR, f"message {message.key!r} can't be decoded nor moved: it stays unsettled"
                )
                self._leave(unit)
            case _:
                assert_never(step)

    def _pause(self, unit: Unit, message: InHand, pause: timedelta) -> None:
        if pause >= _SECOND and not pause % _SECOND:
            text = f"was seen {message.seen} times: delayed for {pause // _MILLISECOND} ms"
            self._log(Level.INFO, f"message {message.key!r} {text}")
        unit.slices = list(slices(pause - unit.waited))
        unit.waited = max(unit.waited, pause)
        self._next_slice(unit, message)

    def _next_slice(self, unit: Unit, message: InHand) -> None:
        if not unit.slices:
            message.served = True
            self._carry_out(unit, message, HandOver())
            return
        unit.phase = Phase.WAITING
        piece = unit.slices.pop(0)
        self._timers.set(TimerKind.SLICE, unit.number, piece)
        self._decide(Wait(delivery=message.delivery, pause=piece, left=sum(unit.slices, timedelta(0))))

    def _hand_over(self, unit: Unit, message: InHand) -> None:
        settings = self._settings
        if not unit.members:
            if settings.transaction_timeout is not None:
                self._timers.set(TimerKind.TIMEOUT, unit.number, settings.transaction_timeout)
            if settings.batch_size > 1 and settings.batch_flush is not None:
                self._timers.set(TimerKind.FLUSH, unit.number, settings.batch_flush)
        unit.current = None
        unit.members.append(message)
        self._decide(
            Deliver(
                call=self._call(unit, message, Phase.HANDLING),
                unit=unit.number,
                delivery=message.delivery,
                seen=message.seen,
                batch_index=len(unit.members) - 1,
                in_doubt=message.key in self._in_doubt,
                state=self._tracker.state(message.key),
            )
        )

    # -- a message that leaves its unit: moved, deleted, parked, put back ---------------------------------

    def _settle(self, unit: Unit, message: InHand, decision: Move | Delete | Park) -> None:
        unit.phase = Phase.SETTLING
        self._settling[decision.unit] = unit, message, decision
        self._decide(decision)

    def _could_not(
        self, unit: Unit, message: InHand, decision: Move | Delete | Park, failure: Failure
    ) -> None:
        """Go down the cascade: copy, redirect, stay and be delivered (J142, J167)."""
        if isinstance(decision, Move) and not decision.redirect:
            self._warn(message, f"it could not be copied ({failure.message}); it is redirected unchanged")
            self._settle(unit, message, replace(decision, unit=self._next_number(), redirect=True))
            return
        self._warn(message, f"{type(decision).__name__.lower()} failed ({failure.message}); it stays here")
        if isinstance(decision, Park):
            self._carry_out(unit, message, Pause(decision.pause, park=False))
            return
        state = self._tracker.state(message.key)
        self._carry_out(unit, message, step_after_failure(message, state, self._settings, self._chance))

    def _put_back(self, unit: Unit) -> None:
        if unit.current is not None:
            self._line.push_front([unit.current])
        self._leave(unit)

    def _leave(self, unit: Unit) -> None:
        unit.current = None
        self._timers.clear(TimerKind.SLICE, unit.number)
        self._go_on(unit)

    # -- a unit: batch, commit, rollback ------------------------------------------------------------------

    def _next_number(self) -> int:
        self._last_number += 1
        return self._last_number

    def _call(self, unit: Unit, message: InHand | None, phase: Phase) -> int:
        unit.call = call = self._next_number()
        unit.phase = phase
        unit.calls.append(call)
        if self._settings.hold_until_ack:
            unit.unacknowledged.add(call)
        self._calls[call] = unit, message
        return call

    def _go_on(self, unit: Unit) -> None:
        """Decide what comes after a message was handled or has left."""
        size = self._settings.batch_size
        if not unit.members:
            self._end(unit)
        elif size == 1 or unit.phase is Phase.ENDING:
            self._finish(unit)
        elif unit.rollback or unit.full or not self.open or len(unit.members) >= size:
            self._end_batch(unit)
        else:
            unit.phase = Phase.COLLECTING
            self._timers.set(TimerKind.IDLE, unit.number, self._settings.batch_idle)

    def _end_batch(self, unit: Unit) -> None:
        self._timers.clear(TimerKind.IDLE, unit.number)
        self._timers.clear(TimerKind.FLUSH, unit.number)
        call = self._call(unit, None, Phase.ENDING)
        size = len(unit.members)
        self._decide(DeliverEndOfBatch(call=call, unit=unit.number, batch_index=size, rollback=unit.rollback))

    def _finish(self, unit: Unit) -> None:
        if unit.unacknowledged and not (unit.lost or unit.expired):
            if not self.stopping:
                unit.phase = Phase.HOLDING
                return
            unit.rollback = True
        if unit.lost or unit.rollback:
            self._decide(RollBackUnit(unit=unit.number))
            self._redeliver(unit)
            return
        unit.phase = Phase.COMMITTING
        acknowledge = tuple(message.delivery for message in unit.members)
        self._decide(CommitUnit(unit=unit.number, acknowledge=acknowledge))

    def _redeliver(self, unit: Unit) -> None:
        self._remember(unit.members)
        for message in unit.members:
            message.flagged = True
            message.counted = message.served = False
        if not unit.lost:
            self._line.push_front(unit.members)
        self._end(unit)

    def _remember(self, messages: Iterable[InHand]) -> None:
        """Know these messages again when they come back, even from a broker that doesn't flag them."""
        for message in messages:
            self._tracker.note(message.key)

    def _end(self, unit: Unit) -> None:
        del self._units[unit.number]
        for kind in _UNIT_TIMERS:
            self._timers.clear(kind, unit.number)
        for call in unit.calls:
            del self._calls[call]
        self._line.release(unit)

    # -- what the handler does ----------------------------------------------------------------------------

    def returned(self, call: int) -> None:
        """The handler returned."""
        unit, _ = self._calls.get(call, (None, None))
        if unit is not None and unit.call == call:
            unit.call = None
            self._go_on(unit)

    def raised(self, call: int, failure: Failure) -> None:
        """The handler raised."""
        unit, message = self._calls.get(call, (None, None))
        if unit is None or unit.call != call:
            return
        for member in unit.members if message is None else (message,):
            self._tracker.note(member.key, failure=failure)
        if message is not None:
            message.poison = failure.is_any(self._non_retryable)
        unit.rollback = True
        unit.unacknowledged.discard(call)
        self.returned(call)

    def rollback_asked(self, call: int) -> None:
        """The handler, or a thread it left the message to, wants no commit; a batch ends at once (J202)."""
        unit, _ = self._calls.get(call, (None, None))
        if unit is not None and unit.phase is not Phase.COMMITTING:
            unit.rollback = True
            self._hurry(unit)

    def acknowledged(self, call: int) -> None:
        """One of the messages that hold-until-ack waits for is done."""
        unit, _ = self._calls.get(call, (None, None))
        if unit is not None:
            unit.unacknowledged.discard(call)
            if unit.phase is Phase.HOLDING and not unit.unacknowledged:
                self._finish(unit)

    def key_of(self, call: int) -> str | None:
        """Return the tracker's key for the message of a call; `None` if the call is over or has none."""
        _, message = self._calls.get(call, (None, None))
        return None if message is None else message.key

    # -- how units of work came out -----------------------------------------------------------------------

    def committed(self, number: int) -> None:
        """A unit is settled for good."""
        if number in self._settling:
            unit, message, decision = self._settling.pop(number)
            if not isinstance(decision, Park):
                self._forget(message)
            self._leave(unit)
        elif (found := self._committing(number)) is not None:
            for message in found.members:
                self._forget(message)
            self._end(found)

    def failed(self, number: int, failure: Failure) -> None:
        """A unit was refused; its messages are still in hand."""
        if number in self._settling:
            unit, message, decision = self._settling.pop(number)
            if unit.lost:
                self._leave(unit)
            else:
                self._could_not(unit, message, decision, failure)
        elif (found := self._committing(number)) is not None:
            for message in found.members:
                self._tracker.note(message.key, failure=failure)
                self._warn(message, f"its unit of work could not be committed ({failure.message})")
            self._redeliver(found)

    def gone(self, number: int, *, in_doubt: bool) -> None:
        """A unit went down with its connection."""
        if number in self._settling:
            unit, message, _ = self._settling.pop(number)
            messages = [message]
        elif (found := self._committing(number)) is not None:
            unit, messages = found, found.members
        else:
            return
        unit.lost = unit.rollback = True
        self._remember(messages)
        if in_doubt:
            self._in_doubt.update(dict.fromkeys(message.key for message in messages))
            while len(self._in_doubt) > IN_DOUBT_LIMIT:
                self._in_doubt.popitem(last=False)
        if unit.phase is Phase.COMMITTING:
            self._end(unit)
        else:
            self._leave(unit)

    def _committing(self, number: int) -> Unit | None:
        unit = self._units.get(number)
        return unit if unit is not None and unit.phase is Phase.COMMITTING else None

    def _forget(self, message: InHand) -> None:
        self._tracker.forget(message.key)
        self._in_doubt.pop(message.key, None)

    # -- what comes from outside --------------------------------------------------------------------------

    def timer(self, kind: TimerKind, number: int) -> None:
        """A timer of a unit is due."""
        unit = self._units[number]
        match kind:
            case TimerKind.SLICE if unit.current is not None and unit.current.counted:
                self._next_slice(unit, unit.current)
            case TimerKind.SLICE if unit.current is not None:
                self._take(unit, unit.current)
            case TimerKind.IDLE:
                self._end_batch(unit)
            case TimerKind.FLUSH:
                unit.full = True
                self._hurry(unit)
            case TimerKind.TIMEOUT if unit.phase is not Phase.COMMITTING:
                text = f"a unit of work of {len(unit.members)} message(s) took too long: it is rolled back"
                self._log(Level.WARNING, text)
                unit.rollback = True
                unit.expired = True
                self._hurry(unit)
                if unit.phase is Phase.HOLDING:
                    self._finish(unit)

    def _hurry(self, unit: Unit) -> None:
        """Let a unit take no more: end its delay and its batch."""
        if unit.phase in {Phase.RECORDING, Phase.WAITING}:
            self._put_back(unit)
        elif unit.phase is Phase.COLLECTING:
            self._end_batch(unit)

    def interrupt(self) -> None:
        """End delays and open batches; let handlers and commits finish.

        When stopping, what only waits to be acknowledged is rolled back (J198).
        """
        for unit in list(self._units.values()):
            self._hurry(unit)
            if unit.phase is Phase.HOLDING and self.stopping:
                self._finish(unit)

    def connection_lost(self) -> None:
        """Give up what can't be settled any more; running handlers keep their place until they return."""
        self._line.clear()
        for unit in list(self._units.values()):
            unit.lost = unit.rollback = True
            self._remember(unit.messages)
            self._line.claim_messages(unit)
            if unit.phase in {Phase.RECORDING, Phase.WAITING}:
                self._leave(unit)
            elif unit.phase is Phase.HOLDING:
                self._finish(unit)
            else:
                self._hurry(unit)

    def abandon(self) -> None:
        """Roll back whatever is still under way; its events are ignored from now on."""
        for unit in list(self._units.values()):
            if unit.members and unit.phase is not Phase.COMMITTING:
                self._decide(RollBackUnit(unit=unit.number))
            self._remember(unit.messages)
            self._end(unit)
        self._settling.clear()
        self._line.clear()

    def _warn(self, message: InHand, what: str) -> None:
        self._log(Level.WARNING, f"message {message.key!r}: {what}")

    def _log(self, level: Level, text: str) -> None:
        self._decide(Log(level=level, text=text))
