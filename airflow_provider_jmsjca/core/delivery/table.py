"""Which units of work and handler calls are under way."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from airflow_provider_jmsjca.core.delivery.units import InHand, Phase, Unit


class UnitTable:
    """Units by number and by the numbers of their calls. A number is never used twice.

    Attributes:
        next_number: Returns a number for a unit or a call.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self.next_number = self._numbers.__next__
        self._units: dict[int, Unit] = {}
        self._calls: dict[int, tuple[Unit, InHand | None]] = {}

    def __len__(self) -> int:
        return len(self._units)

    def __iter__(self) -> Iterator[Unit]:
        """Iterate over the units there are now, whatever happens to the table meanwhile."""
        return iter(tuple(self._units.values()))

    def __getitem__(self, number: int) -> Unit:
        return self._units[number]

    def __contains__(self, number: int) -> bool:
        return number in self._units

    @property
    def in_hand(self) -> int:
        """How many messages the units hold that are not lost."""
        units = self._units.values()
        return sum(len(unit.members) + (unit.current is not None) for unit in units if not unit.lost)

    def open(self) -> Unit:
        """Begin a unit."""
        unit = Unit(number=self.next_number())
        self._units[unit.number] = unit
        return unit

    def adopt(self, unit: Unit) -> None:
        """Take in a unit and its calls as they are."""
        self._units[unit.number] = unit
        for call, message in zip(unit.calls, unit.members, strict=True):
            self._calls[call] = unit, message

    def call(self, unit: Unit, message: InHand | None, phase: Phase) -> int:
        """Begin a handler call of a unit; without a message it is that of EndOfBatch."""
        call = self.next_number()
        unit.phase = phase
        unit.call = call
        unit.calls.append(call)
        self._calls[call] = unit, message
        return call

    def of_call(self, call: int) -> tuple[Unit, InHand | None] | tuple[None, None]:
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
