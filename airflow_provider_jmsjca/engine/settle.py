"""Carries out what settles messages: commits, moves, deletions, parking."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Protocol, TypeAlias, assert_never

from airflow_provider_jmsjca.core.dead_letter import Origin, PropertyPrefix, copy_of, redirect_of
from airflow_provider_jmsjca.core.delivery import DeliveryMachine
from airflow_provider_jmsjca.core.delivery.decisions import CommitUnit, Delete, Move, Park, Stage
from airflow_provider_jmsjca.core.delivery.events import (
    ConnectionLost,
    Event,
    UnitCommitted,
    UnitFailed,
    UnitInDoubt,
    UnitLost,
)
from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.core.load_balancing import with_origin
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.parking import parked_copy
from airflow_provider_jmsjca.engine.admission import Admission
from airflow_provider_jmsjca.engine.listener_settings import ListenerSettings
from airflow_provider_jmsjca.engine.outage import Bearer, Intake
from airflow_provider_jmsjca.engine.statistics import Tally
from airflow_provider_jmsjca.engine.workers import Work
from airflow_provider_jmsjca.errors import (
    ConfigurationError,
    ConnectionLostError,
    InDoubtError,
    JmsError,
    PermanentBrokerError,
    TransientBrokerError,
)
from airflow_provider_jmsjca.transports.base import Outgoing, UnitOfWork

_log = logging.getLogger(__name__)

TakeOut: TypeAlias = Move | Delete | Park | Stage
Settling: TypeAlias = CommitUnit | TakeOut

_COME_BACK = {Park, Stage}


class Driver(Protocol):
    """Who has the machine: decisions come from there, and how they came out is told there.

    Attributes:
        settings: How it consumes.
        machine: Asked which units are open.
        tally: What has happened.
        units: The broker's side of units of work, where it is begun.
    """

    settings: ListenerSettings
    machine: DeliveryMachine
    tally: Tally
    units: dict[int, UnitOfWork]

    @property
    def admission(self) -> Admission:
        """What it has taken in hand."""

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Guards all of it."""

    def handle(self, events: tuple[Event, ...]) -> list[Work]:
        """Tell the machine; return what is to be done next by whoever asks. Under the lock."""

    def report(self, link: Bearer, event: Event) -> None:
        """Something happened to a connection."""

    def speak(self) -> None:
        """Say what there is to say; not under the lock."""

    def leave_unit(self, unit: int) -> int:
        """A unit is over; return for how many messages its handler was called. Under the lock."""


class Settler:
    """Settles messages, and tells the machine how that went.

    Args:
        dispatcher: Whose decisions are carried out.
        prefix: How the properties of a dead letter are spelled.
    """

    def __init__(self, dispatcher: Driver, prefix: PropertyPrefix = PropertyPrefix.DOCUMENTED) -> None:
        settings = dispatcher.settings
        self._dispatcher = dispatcher
        self._tally = dispatcher.tally
        self._prefix = prefix
        self._confirm = settings.confirm
        self._origin = Origin(
            destination=settings.delivery.destination,
            subscription_name=settings.subscription.durable_name,
            context_name=settings.context_name,
            client_id=settings.client_id,
        )

    def settle(self, intake: Intake, decision: Settling) -> list[Work]:
        """Carry out a decision; return what is to be done next."""
        return self.conclude(intake, decision, self.attempt(intake, decision))

    def attempt(self, intake: Intake, decision: Settling) -> Exception | None:
        """Do at the broker what a decision says, and tell nobody; return why it could not be done.

        Guarantee: see `UnitOfWork`. A commit of nothing but acknowledgements is pipelined unless the listener
        confirms each: a crash brings those back that were under way, and nothing else is done twice.
        """
        try:
            if isinstance(decision, CommitUnit):
                self._commit(intake, decision)
            else:
                self._take_out(intake, decision)
        except Exception as error:  # noqa: BLE001 - a worker's edge: the message must not slip out of hand
            return error
        return None

    def conclude(self, intake: Intake, decision: Settling, error: Exception | None) -> list[Work]:
        """Tell the machine how an attempt came out; return what is to be done next."""
        if error is not None:
            return self.failed(intake, decision, error)
        return self._conclude(intake, decision, UnitCommitted(unit=decision.unit))

    def failed(self, intake: Intake, decision: Settling, error: Exception) -> list[Work]:
        """Tell the machine that a decision could not be carried out; return what is to be done next."""
        unit = decision.unit
        match error:
            case ConnectionLostError():
                return self._conclude(intake, decision, UnitLost(unit=unit), lost=True)
            case InDoubtError():
                _log.warning("%s", error)
                return self._conclude(intake, decision, UnitInDoubt(unit=unit), lost=True)
            case JmsError():
                pass
            case _:
                _log.error("Settling a message failed", exc_info=error)
        return self._conclude(intake, decision, UnitFailed(unit=unit, failure=Failure.of(error)))

    def _conclude(
        self, intake: Intake, decision: Settling, outcome: Event, *, lost: bool = False
    ) -> list[Work]:
        numbers = decision.acknowledge if isinstance(decision, CommitUnit) else (decision.delivery,)
        dispatcher = self._dispatcher
        with dispatcher.lock:
            self._count(decision, outcome, len(numbers))
            if outcome.__class__ is UnitCommitted:
                self._let_go(intake, decision, numbers)
            todo = dispatcher.handle((outcome,))
        if lost:
            failure = Failure(class_names=("ConnectionLostError",), message="the connection was lost")
            dispatcher.report(intake.link, ConnectionLost(failure=failure))
        dispatcher.speak()
        return todo

    def _let_go(self, intake: Intake, decision: Settling, numbers: tuple[int, ...]) -> None:
        admission = self._dispatcher.admission
        settled = admission.settled
        for number in numbers:
            if number not in intake.held:
                continue
            origin = intake.origin(number)
            received, message = intake.held.pop(number)
            if intake.origins:
                intake.origins.pop(number, None)
            if message is None:
                continue
            if decision.__class__ not in _COME_BACK:
                settled.note(received, message, origin)
            if admission.duplicates is not None:
                handled = decision.__class__ is CommitUnit
                admission.out_of_hand(intake, message.message_id, handled=handled)

    def unit_to_join(self, intake: Intake, number: int) -> UnitOfWork:
        """Return the broker's side of a unit of work that is still open, begun if it isn't yet.

        Raises:
            ConfigurationError: The unit is being committed, or is over.
            ConnectionLostError: The connection is gone.
        """
        with self._dispatcher.lock:
            if not self._dispatcher.machine.is_open(number):
                raise ConfigurationError("this delivery is over; what belongs to it is sent before that")
            return self.unit_of(intake, number)

    def unit_of(self, intake: Intake, number: int) -> UnitOfWork:
        """Return the broker's side of a unit of work, begun if it isn't yet."""
        units = self._dispatcher.units
        unit = units.get(number)
        if unit is None:
            if not intake.open:
                raise ConnectionLostError("the connection was lost: the message will come again")
            unit = units[number] = intake.link.connection.unit()
        return unit

    def _commit(self, intake: Intake, decision: CommitUnit) -> None:
        unit = self._dispatcher.units.pop(decision.unit, None)
        held = [intake.held[number][0] for number in decision.acknowledge]
        copies = self._dispatcher.settings.copies
        if unit is None and not self._confirm and not copies:
            for received in held:
                received.consumer.acknowledge((received,))
            return
        if unit is None:
            unit = intake.link.connection.unit()
        with _rolled_back(unit):
            if self._dispatcher.settings.delivery.batch_size == 1:  # those of a batch are in already
                for received in held:
                    unit.acknowledge(received)
            for number in decision.acknowledge if copies else ():
                message = intake.held[number][1]
                if message is not None:
                    for each in copies:
                        unit.send(Outgoing(destination=each, message=redirect_of(message)))
        unit.commit()

    def _take_out(self, intake: Intake, decision: TakeOut) -> None:
        if not intake.open:
            raise ConnectionLostError("the connection was lost: the message will come again")
        received, message = intake.held[decision.delivery]
        outgoing = self._outgoing(intake, decision, message)
        unit = intake.link.connection.unit()
        with _rolled_back(unit):
            unit.acknowledge(received)
            for each in outgoing:
                unit.send(each)
        unit.commit()

    def _outgoing(self, intake: Intake, decision: TakeOut, message: JmsMessage | None) -> list[Outgoing]:
        match decision:
            case Delete():
                return []
            case _ if message is None:
                raise PermanentBrokerError("nothing of the message can be read, so nothing can be sent")
            case Stage():
                in_progress = self._dispatcher.settings.in_progress
                if in_progress is None:
                    raise AssertionError("nothing is staged without an in-progress queue")
                return [in_progress.outgoing(message, intake.origin(decision.delivery))]
            case Park(pause=pause, seen=seen):
                target = intake.origin(decision.delivery)
                copy = parked_copy(message, seen)
                if message.destination is not None and message.destination != target:
                    copy = with_origin(copy, message, target)
                return [Outgoing(destination=target, message=copy, delay=pause)]
            case Move(redirect=True):
                copy = redirect_of(message)
            case Move():
                limit = intake.link.connection.capabilities.max_property_characters
                copy = copy_of(
                    message,
                    replace(self._origin, destination=intake.origin(decision.delivery)),
                    decision.state,
                    prefix=self._prefix,
                    max_property_characters=limit,
                )
            case _:
                assert_never(decision)
        return [Outgoing(destination=target, message=copy) for target in decision.targets]

    def _count(self, decision: Settling, outcome: Event, messages: int) -> None:
        tally = self._tally
        match outcome, decision:
            case UnitCommitted(), CommitUnit(unit=unit):
                tally.commit(messages)
                self._dispatcher.leave_unit(unit)
            case UnitCommitted(), Move():
                tally.bypass(moved=1)
            case UnitCommitted(), Delete():
                tally.bypass(deleted=1)
            case UnitCommitted(), Park():
                tally.parked += 1
                self._dispatcher.admission.admit_more()
            case UnitCommitted(), Stage():
                pass
            case UnitLost(), CommitUnit(unit=unit):
                tally.rolled_back += self._dispatcher.leave_unit(unit)
            case UnitFailed(), CommitUnit(unit=unit):
                tally.failed += 1
                self._dispatcher.leave_unit(unit)
            case UnitFailed(), _:
                tally.failed += 1
                self._dispatcher.admission.admit_more()  # it may stay where it is
            case UnitInDoubt(), _:
                tally.in_doubt += messages
                self._dispatcher.leave_unit(decision.unit)


@contextlib.contextmanager
def _rolled_back(unit: UnitOfWork) -> Iterator[None]:
    """Roll the unit back if it can't be put together: its messages would stay part of it for ever."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, TransientBrokerError):
            unit.rollback()
        raise
