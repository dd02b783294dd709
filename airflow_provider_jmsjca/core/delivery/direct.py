"""The short way through the machine, for a message about which nothing is out of the ordinary."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_jmsjca.core.delivery.completion import Gate
from airflow_provider_jmsjca.core.delivery.line import Line
from airflow_provider_jmsjca.core.delivery.settings import DeliverySettings
from airflow_provider_jmsjca.core.delivery.sightings import Sightings
from airflow_provider_jmsjca.core.delivery.table import UnitTable
from airflow_provider_jmsjca.core.delivery.units import InHand, Phase, TimerKind, Timers, Unit


@dataclass(slots=True, eq=False)
class Direct:
    """A unit of work with one message on its first delivery, the only one in hand.

    It says in few fields what a `Unit` would say in many; as soon as anything else happens, it becomes one.

    Attributes:
        unit: Its number.
        call: That of the handler call.
        delivery: That of the message.
        message_id: The message's.
        group: Its JMSXGroupID.
        began: When it was handed over.
        committing: The handler has returned.
    """

    unit: int
    call: int
    delivery: int
    message_id: str
    group: str | None
    began: float
    committing: bool = False

    def as_unit(self) -> Unit:
        """Return the same as a unit of work."""
        message = InHand(
            delivery=self.delivery,
            key=self.message_id,
            message_id=self.message_id,
            group=self.group,
            flagged=False,
            served=False,
            poison=False,
            undecodable=False,
            counted=True,
        )
        return Unit(
            number=self.unit,
            phase=Phase.COMMITTING if self.committing else Phase.HANDLING,
            members=[message],
            call=None if self.committing else self.call,
            calls=[self.call],
        )


@dataclass(slots=True, kw_only=True, eq=False)
class ShortWay:
    """Takes a message from its arrival to its commit while nothing has to be decided about it.

    Attributes:
        allowed: Whether the rules allow it at all.
        direct: What is on the way.
        clear: It was free when last looked at, and nothing has happened since but on this way.
    """

    settings: DeliverySettings
    gate: Gate
    line: Line
    units: UnitTable
    sightings: Sightings
    timers: Timers
    allowed: bool
    direct: Direct | None = None
    clear: bool = False

    def begin(self, delivery: int, message_id: str, group: str | None, now: float) -> Direct | None:
        """Hand over a message that nothing is known about, if nothing else is in hand."""
        if not self.clear:
            self.clear = self.allowed and self.gate.open and not (len(self.units) or len(self.line))
        if not self.clear or self.direct is not None or self.sightings.knows(message_id):
            return None
        numbers = self.units
        direct = Direct(numbers.next_number(), numbers.next_number(), delivery, message_id, group, now)
        self.direct = direct
        return direct

    def is_open(self, unit: int) -> bool:
        """Whether this unit is on the way, and its handler has not returned."""
        direct = self.direct
        return direct is not None and direct.unit == unit and not direct.committing

    def leave(self) -> None:
        """Go on the long way with what is on this one, because something else happens."""
        self.clear = False
        if (direct := self.direct) is None:
            return
        self.direct = None
        unit = direct.as_unit()
        self.units.adopt(unit)
        self.line.claim_group(unit, unit.members[0])
        if (timeout := self.settings.transaction_timeout) is not None:
            self.timers.set_for(TimerKind.TIMEOUT, unit.number, direct.began + timeout.total_seconds())


def allows_short_way(settings: DeliverySettings) -> bool:
    """Say whether, by these rules, there is at most one message in hand, and it can be delivered at once."""
    return (
        settings.concurrency == settings.batch_size == len(settings.sources) == 1
        and not (settings.hold_until_ack or settings.record_attempts or settings.in_progress)
        and settings.handling.action_for(0) is None
    )
