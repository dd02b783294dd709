"""How a unit of work goes on after each call of a handler, and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from airflow_provider_jmsjca.core.delivery.decisions import (
    CommitUnit,
    Decision,
    DeliverEndOfBatch,
    RollBackUnit,
)
from airflow_provider_jmsjca.core.delivery.line import Gate, Line
from airflow_provider_jmsjca.core.delivery.settings import DeliverySettings
from airflow_provider_jmsjca.core.delivery.sightings import Sightings
from airflow_provider_jmsjca.core.delivery.units import InHand, Phase, TimerKind, Timers, Unit, UnitTable
from airflow_provider_jmsjca.core.failure import Failure
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
    line: Line
    units: UnitTable
    sightings: Sightings
    timers: Timers
    decide: Callable[[Decision], None]

    def call(self, unit: Unit, message: InHand | None, phase: Phase) -> int:
        """Begin a handler call; with hold-until-ack it must be acknowledged (J200)."""
        call = self.units.call(unit, message, phase)
        if self.settings.hold_until_ack:
            unit.unacknowledged.add(call)
        return call

    def go_on(self, unit: Unit) -> None:
        """Decide what comes after a message was handled or has left the unit."""
        size = self.settings.batch_size
        if not unit.members:
            self.end(unit)
        elif size == 1 or unit.phase is Phase.ENDING:
            self.finish(unit)
        elif unit.rollback or unit.full or not self.gate.open or len(unit.members) >= size:
            self.end_batch(unit)
        else:
            unit.phase = Phase.COLLECTING
            self.timers.set(TimerKind.IDLE, unit.number, self.settings.batch_idle)

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
        """Deliver EndOfBatch, whatever is to become of the batch (J185)."""
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
        self.sightings.to_come_again([each for each in unit.members if not each.uncalled])
        uncalled = [each for each in unit.members if each.uncalled]
        for message in uncalled:
            message.uncalled = False
        if unit.lost:
            self.sightings.given_back(uncalled)
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

    What comes of a call that is over is ignored.

    Args:
        units: Where the calls are found.
        sightings: Told of what failed.
        completion: Says how the unit of work goes on.
        non_retryable: Names of exception classes after which a message isn't delivered again.

    Source: J192, J197, J200-J202.
    """

    def __init__(
        self,
        units: UnitTable,
        sightings: Sightings,
        completion: Completion,
        non_retryable: frozenset[str],
    ) -> None:
        self._units = units
        self._sightings = sightings
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
        self._sightings.failed(failing, failure)
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
