"""How a unit of work goes on after each of its messages, and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from airflow_provider_jmsjca.core.delivery.decisions import (
    CommitUnit,
    Decision,
    DeliverEndOfBatch,
    RollBackUnit,
)
from airflow_provider_jmsjca.core.delivery.line import Line
from airflow_provider_jmsjca.core.delivery.settings import DeliverySettings
from airflow_provider_jmsjca.core.delivery.sightings import Sightings
from airflow_provider_jmsjca.core.delivery.table import UnitTable
from airflow_provider_jmsjca.core.delivery.units import InHand, Phase, TimerKind, Timers, Unit

_UNIT_TIMERS = (TimerKind.SLICE, TimerKind.IDLE, TimerKind.FLUSH, TimerKind.TIMEOUT)


@dataclass(slots=True)
class Gate:
    """What the activation allows.

    Attributes:
        open: Messages may be taken from the line.
        stopping: The activation is on its way down.
    """

    open: bool = False
    stopping: bool = False


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
        self.sightings.to_come_again(unit.members)
        if not unit.lost:
            self.line.push_front(unit.members)
        self.end(unit)

    def end(self, unit: Unit) -> None:
        """End the unit, and with it its calls, timers and claims."""
        self.units.close(unit)
        for kind in _UNIT_TIMERS:
            self.timers.clear(kind, unit.number)
        self.line.release(unit)
