"""Gives waiting messages to units of work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from airflow_provider_jmsjca.core.delivery.completion import Gate
from airflow_provider_jmsjca.core.delivery.line import Line
from airflow_provider_jmsjca.core.delivery.room import Share
from airflow_provider_jmsjca.core.delivery.settings import DeliverySettings
from airflow_provider_jmsjca.core.delivery.staging import Staging
from airflow_provider_jmsjca.core.delivery.table import UnitTable
from airflow_provider_jmsjca.core.delivery.units import InHand, Phase, TimerKind, Timers, Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """Opens units while there are messages, up to the concurrency and within the room there is.

    Source: J81-J84, J183; W2, W4.
    """

    settings: DeliverySettings
    gate: Gate
    line: Line
    units: UnitTable
    timers: Timers
    room: Share | None
    staging: Staging
    take: Callable[[Unit, InHand], None]

    def fill(self, settled: int) -> None:
        """Give waiting messages to the units that can take them.

        Args:
            settled: Messages settled since the start.
        """
        if self.room is not None:
            self._fill_room(self.room, settled)
        elif self.gate.open and len(self.line):
            self._fill()

    def _fill_room(self, room: Share, settled: int) -> None:
        self._report(room, settled)
        if self.gate.open:
            self._fill()
            while self._report(room, settled):  # what has left its unit at once makes room again
                self._fill()
        full = len(self.units) >= self.settings.concurrency
        if full or not self.gate.open or not (self.line.offers_front(None) or self._offers_turn(None)):
            room.wants_nothing()

    def _report(self, room: Share, settled: int) -> bool:
        return room.report(units=len(self.units), taken=self._taken, settled=settled, waiting=self._waiting)

    @property
    def _taken(self) -> int:
        """How many messages are in units, or in progress and about to be."""
        return self.units.in_hand + self._waiting

    @property
    def _waiting(self) -> int:
        """How many messages are on their way through the in-progress queue, or have come from there."""
        return len(self.staging) + self.line.in_front if self.settings.in_progress else 0

    def _offers_turn(self, number: int | None) -> bool:
        """Say whether a unit may take a message that isn't under way yet."""
        settings = self.settings
        # No more are put in progress than can be handled at once: they would be in doubt after a crash.
        full = settings.in_progress and self._taken >= settings.concurrency * settings.batch_size
        return not full and self.line.offers_turn(number)

    def _fill(self) -> None:
        if self.settings.batch_size > 1:
            for unit in self.units:
                if unit.phase is Phase.COLLECTING and (message := self._next(unit)) is not None:
                    self.timers.clear(TimerKind.IDLE, unit.number)
                    self.take(unit, message)
        while len(self.units) < self.settings.concurrency:
            if (message := self._next(None)) is None:
                return
            self.take(self.units.open(), message)

    def _next(self, unit: Unit | None) -> InHand | None:
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
