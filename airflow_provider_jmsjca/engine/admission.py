"""What of the messages that have come is taken in hand, and when."""

from __future__ import annotations

import itertools
import logging
from typing import Protocol

from airflow_provider_jmsjca.core.delivery import DeliveryMachine
from airflow_provider_jmsjca.core.delivery.events import MessageArrived
from airflow_provider_jmsjca.engine.arrival import ArrivalReader
from airflow_provider_jmsjca.engine.duplicates import Duplicates
from airflow_provider_jmsjca.engine.listener_settings import ListenerSettings
from airflow_provider_jmsjca.engine.outage import Intake
from airflow_provider_jmsjca.engine.settled import SettledLately
from airflow_provider_jmsjca.engine.statistics import Tally

_log = logging.getLogger("airflow_provider_jmsjca.listener")


class Notified(Protocol):
    """Who takes in what has come."""

    def arrived(self, intake: Intake) -> None:
        """Have a message of the intake taken in."""


class Admission:
    """Between what the connection has received and what the machine is told of.

    Everything here happens under the dispatcher's lock.

    Args:
        settings: How to consume.
        machine: Asked how much is in hand.
        tally: Told of what has come again.
        workers: Called for what may be taken in now and could not be when it came.
        intake: The first, closed one.
        takes_all: Tell the machine of every message as it comes, for one that has a choice to make or keeps
            the limit itself.

    Attributes:
        intake: What the current consumers have received.
        limit: No more messages than this are taken in hand; `None`: no limit.
        numbers: For what is taken in.
        settled: What was settled lately; it isn't taken in again.
        duplicates: Knows the duplicates, where they are dropped; `None` where they aren't.
    """

    def __init__(
        self,
        settings: ListenerSettings,
        machine: DeliveryMachine,
        tally: Tally,
        workers: Notified,
        intake: Intake,
        *,
        takes_all: bool,
    ) -> None:
        self._name = settings.name
        self._machine = machine
        self._tally = tally
        self._workers = workers
        self._reader = ArrivalReader(settings)
        self.intake = intake
        self.takes_all = takes_all
        self.limit: int | None = None
        self.numbers = itertools.count(1)
        self._sources = settings.delivery.sources
        self.settled = SettledLately(len(self._sources))
        self._known = self.settled.known
        self.duplicates = Duplicates() if settings.drop_duplicates else None

    def begin_anew(self, intake: Intake) -> None:
        """Take in what comes to other consumers from now on; what was not settled goes back to the broker."""
        old, self.intake = self.intake, intake
        settled, known = self.settled, self._known
        back = {settled.key(old.origin(number), message) for number, (_, message) in old.held.items()}
        for received in tuple(old.arrivals):
            event, message, origin = self._reader.read(received, 0, ask=False)
            key = settled.key(origin or self._sources[event.source], message)
            if not (event.redelivered and key in known):
                back.add(key)
        settled.forget(back)
        self._known = settled.known

    def may_take(self, intake: Intake) -> bool:
        """Say whether something has come that may be taken in."""
        if intake is not self.intake or not intake.open or not intake.arrivals:
            return False
        if self.takes_all:
            return intake.ready
        return self.limit is None or self._tally.settled + self._machine.in_hand < self.limit

    def take_all(self) -> list[MessageArrived]:
        """Take everything in that has come, so that the machine can choose among the destinations."""
        intake, taken = self.intake, []
        while intake.open and intake.ready and intake.arrivals:
            if (event := self.take()) is not None:
                taken.append(event)
        return taken

    def take(self) -> MessageArrived | None:
        """Take in what came first; `None` if it isn't for the machine."""
        intake = self.intake
        received = intake.arrivals.popleft()
        if received.generation != received.consumer.generation:
            return None
        event, message, origin = self._reader.read(received, next(self.numbers))
        if event.left and not self._reader.takes_left:
            _log.error("%s: message %s was left in progress: it stays", self._name, event.message_id)
            return None
        duplicates = None if event.left else self.duplicates
        settled = self.settled
        known = settled.knows(event, received, settled.key(self._sources[event.source], message))
        if known or (duplicates and duplicates.is_handled(event.message_id)):
            self._tally.repeated += 1
            settled.keep(received)
            if event.in_progress:
                self._machine.came_in_vain(event.message_id)
            return None
        if duplicates is not None and duplicates.has_to_wait(intake, event.message_id, received):
            return None
        intake.held[event.delivery] = received, message
        if origin is not None:
            intake.origins[event.delivery] = origin
        return event

    def out_of_hand(self, intake: Intake, message_id: str | None, *, handled: bool) -> None:
        """Look again at the messages that waited for one of their own id."""
        if self.duplicates is not None:
            for received in reversed(self.duplicates.out_of_hand(intake, message_id, handled=handled)):
                intake.arrivals.appendleft(received)
                self._workers.arrived(intake)

    def admit_more(self) -> None:
        """A message went without being settled: the limit has room again."""
        if self.limit is not None and self.intake.arrivals:
            self._workers.arrived(self.intake)
