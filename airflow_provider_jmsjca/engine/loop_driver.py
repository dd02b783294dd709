"""Drives the delivery machine in an event loop: no thread and no connection of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import assert_never

from airflow_provider_jmsjca.core.delivery import DeliveryMachine
from airflow_provider_jmsjca.core.delivery.decisions import (
    CloseConnection,
    CloseConsumer,
    CommitUnit,
    Connect,
    Decision,
    Delete,
    Deliver,
    DeliverEndOfBatch,
    Leave,
    Log,
    Move,
    OpenConsumer,
    Park,
    RecordAttempt,
    RollBackUnit,
    Stage,
    Stopped,
    Wait,
)
from airflow_provider_jmsjca.core.delivery.events import (
    ConnectFailed,
    ConnectionUp,
    ConsumerOpened,
    Event,
    Start,
    StopAsked,
    Tick,
)
from airflow_provider_jmsjca.core.delivery.refusals import Refusals
from airflow_provider_jmsjca.core.redelivery import RedeliveryTracker
from airflow_provider_jmsjca.engine.async_connection import AsyncConnection
from airflow_provider_jmsjca.engine.backlog_looks import look_for_what_stays
from airflow_provider_jmsjca.engine.hand_outs import HandOuts
from airflow_provider_jmsjca.engine.levels import LEVELS
from airflow_provider_jmsjca.engine.listener_settings import ListenerSettings
from airflow_provider_jmsjca.engine.loop_admission import LoopAdmission
from airflow_provider_jmsjca.engine.loop_link import LoopLink
from airflow_provider_jmsjca.engine.once import Once
from airflow_provider_jmsjca.engine.outage import Bearer, Intake, watches
from airflow_provider_jmsjca.engine.receivers import InDoubt, Receivers
from airflow_provider_jmsjca.engine.settle import Settler, Settling
from airflow_provider_jmsjca.engine.statistics import Tally
from airflow_provider_jmsjca.engine.threads import Lane
from airflow_provider_jmsjca.engine.workers import Work
from airflow_provider_jmsjca.errors import ConfigurationError, JmsError
from airflow_provider_jmsjca.transports.base import UnitOfWork

_log = logging.getLogger(__name__)


class LoopDriver:
    """The machine, its clock, and who carries out what it decides; for one event loop.

    Decisions that touch the broker run in a lane, one after the other. A slow move holds up the
    acknowledgements behind it.

    Args:
        settings: How to consume.
        connection: Lends connections.
        once: Which messages have an outcome.
        chance: A random number, 0 up to but not including 1.

    Attributes:
        machine: Fresh; nobody else touches it.
        tally: What has happened.
        admission: What may be taken in hand.
        hand_outs: What the user has, or may have next.
        fault: Why the broker refuses for good; `None` while it doesn't.
        stopped: Whether nothing more comes.
        changed: Set when there is something to look at.
    """

    def __init__(
        self,
        settings: ListenerSettings,
        connection: AsyncConnection,
        once: Once,
        chance: Callable[[], float],
    ) -> None:
        # Whoever ends deliveries promises no order, and others use the connection too.
        first, *further = (replace(each, in_order=False, alone=False) for each in settings.subscriptions)
        self.settings = replace(settings, subscription=first, further=tuple(further))
        self.machine = DeliveryMachine(settings.delivery, RedeliveryTracker(), chance)
        self.tally = Tally()
        self.units: dict[int, UnitOfWork] = {}
        self.lock: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        self.fault: JmsError | None = None
        self.stopped = False
        self.changed = asyncio.Event()
        self._source = connection
        self._once = once
        self._loop = asyncio.get_running_loop()
        self._lane = Lane(self._loop.call_later)
        self._refusals = Refusals()
        self._in_doubt = InDoubt()
        self.link = self._new_link()
        intake = Intake(self.link)
        intake.open = False
        self.admission = LoopAdmission(
            self.settings, self.machine, self.tally, intake, once=once, feed=self.feed, speak=self.speak
        )
        self._settler = Settler(self)
        self._events: deque[Event] = deque()
        self._feeding = False
        self._alarm: asyncio.TimerHandle | None = None
        self._last_event = 0.0
        self._looks: list[asyncio.Task[None]] = []
        self.hand_outs = HandOuts(self.tally, once, self._loop.time, self.feed, self.changed.set)

    def _new_link(self) -> LoopLink:
        receivers = Receivers(self.settings, self._refusals, self._in_doubt)
        return LoopLink(self.settings, self._source, self, receivers, self._lane)

    def start(self) -> None:
        """Begin to consume."""
        self.tally.began = self._loop.time()
        self.feed(Start())

    # -- events in ----------------------------------------------------------------------------------------

    def feed(self, *events: Event) -> None:
        """Tell the machine, and carry out what it decides."""
        self._last_event = self._loop.time()
        self._events.extend(events)
        if self._feeding:
            return
        self._feeding = True
        try:
            while self._events:
                for decision in self.machine.handle(self._events.popleft(), self._loop.time()):
                    self._carry_out(decision)
        finally:
            self._feeding = False
        self._arm()

    def handle(self, events: tuple[Event, ...]) -> list[Work]:
        """Tell the machine; there is nothing left to do for whoever asks."""
        self.feed(*events)
        return []

    def report(self, link: Bearer, event: Event) -> None:
        """Something happened to a link; only the current one counts."""
        if link is not self.link or link.is_lost:
            return
        if isinstance(event, ConnectionUp):
            self.tally.connections += 1
            self.feed(event)
            if not self._looks and link.connection.capabilities.backlog:
                self._looks = [
                    self._loop.create_task(look_for_what_stays(watch))
                    for watch in watches(self.settings, self._source.look, self)
                ]
            return
        link.is_lost = True
        self.admission.intake.open = False
        link.close()
        if isinstance(event, ConnectFailed) and event.permanent:
            self.fault = link.fault
            self.changed.set()
        self.feed(event)
        self.hand_outs.withdraw()

    def opening(self, intake: Intake) -> None:
        """The outcomes of whatever was settled over earlier connections are known: this is what they were."""
        if intake is self.admission.intake:
            self.admission.settled.connected(stable=intake.link.connection.capabilities.stable_message_id)

    def opened(self, intake: Intake) -> None:
        """The consumers of an intake are there."""
        if intake is self.admission.intake and intake.open:
            self.feed(ConsumerOpened())
            self.arrived(intake)

    def arrived(self, intake: Intake) -> None:
        """Something has come."""
        self.admission.arrived(intake)

    def idle_for(self) -> float:
        """For how many seconds there has been nothing to do; 0 while there is, and while not connected."""
        intake = self.admission.intake
        if not intake.open or intake.held or intake.arrivals or self.tally.active:
            return 0.0
        return self._loop.time() - self._last_event

    def keeps(self) -> bool:
        """Whether messages stay unsettled, with nothing to do."""
        return self._once.keeps

    def _arm(self) -> None:
        deadline = self.machine.deadline
        if self._alarm is not None:
            if deadline is not None and self._alarm.when() <= deadline:
                return
            self._alarm.cancel()
        self._alarm = None if deadline is None else self._loop.call_at(deadline, self._tick)

    def _tick(self) -> None:
        self._alarm = None
        self.feed(Tick())

    # -- decisions out ------------------------------------------------------------------------------------

    def _carry_out(self, decision: Decision) -> None:  # noqa: C901, PLR0912 - the table of all decisions
        match decision:
            case Deliver():
                self._deliver(decision)
            case CommitUnit() | Move() | Delete() | Park():
                self._settle(self.admission.intake, decision)
            case RollBackUnit(unit=unit):
                self.tally.rolled_back += self.hand_outs.rolled_back(unit)
            case Log(level=level, text=text):
                _log.log(LEVELS[level], "%s: %s", self.settings.name, text)
            case Wait():
                pass
            case Leave(delivery=delivery):
                self._leave(delivery)
            case Connect():
                self.link = self._new_link()
                self.link.start()
            case OpenConsumer():
                intake = Intake(self.link)
                self.admission.begin_anew(intake, self.hand_outs.returned)
                self.hand_outs.begin()
                self.link.consume(intake)
            case CloseConsumer():
                self.admission.intake.open = False
                self.link.stop_consuming()
            case CloseConnection():
                self.admission.intake.open = False
                self.link.close()
            case Stopped():
                self.stopped = True
                self.changed.set()
            case DeliverEndOfBatch() | RecordAttempt() | Stage():
                raise AssertionError(f"{type(decision).__name__} was refused when the stream was made")
            case _:
                assert_never(decision)

    def _deliver(self, decision: Deliver) -> None:
        intake = self.admission.intake
        received, _ = intake.held[decision.delivery]
        self.hand_outs.deliver(decision, intake, self.admission.key(received))

    def _settle(self, intake: Intake, decision: Settling) -> None:
        link = self.link

        def work() -> None:
            link.post(self._conclude, intake, decision, self._settler.attempt(intake, decision))

        self._lane.submit(work)

    def _conclude(self, intake: Intake, decision: Settling, error: Exception | None) -> None:
        self._settler.conclude(intake, decision, error)
        if error is None and intake is self.admission.intake:
            settled = decision.acknowledge if isinstance(decision, CommitUnit) else (decision.delivery,)
            self.hand_outs.settled(settled)

    def _leave(self, number: int) -> None:
        message_id, origin = self.admission.leave(number)
        _log.error(
            "%s: message %s stays on %s; %d of %s places for unsettled messages are taken so",
            self.settings.name,
            message_id,
            origin,
            self._once.left,
            self.settings.subscription.prefetch or "the broker's",
        )

    def speak(self) -> None:
        """Settle once more what came again although it was settled."""
        settled = self.admission.settled
        if settled.has_repeated:
            self._lane.submit(lambda: settled.settle_again(self.settings.name))

    def leave_unit(self, unit: int) -> int:
        """A unit is over: of one message, for there are no batches."""
        del unit
        return 1

    # -- the end ------------------------------------------------------------------------------------------

    async def close(self, *, commit_within: float, within: float) -> None:
        """Let what is being settled be settled, hand back the rest, and give back the connection.

        Args:
            commit_within: Seconds for what is being settled.
            within: Seconds for all of it; after them a thread goes on alone.
        """
        end = self._loop.time() + within
        self.feed(StopAsked(reason="the stream is closed", within=timedelta(seconds=commit_within)))
        self.hand_outs.end_all()
        try:
            while not self.stopped and (left := end - self._loop.time()) > 0:
                self.changed.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.changed.wait(), left)
        finally:
            # Whoever shares what is known must not take what goes back for what was returned before.
            shut = Intake(self.link)
            shut.open = False
            self.admission.begin_anew(shut, self.hand_outs.returned)
            self.link.close()
            if self._alarm is not None:
                self._alarm.cancel()
            for look in self._looks:
                look.cancel()
        await asyncio.wait({self.link.closed}, timeout=max(0.0, end - self._loop.time()))


def refuse_unsupported(settings: ListenerSettings) -> None:
    """Refuse what a stream of deliveries doesn't do.

    Raises:
        ConfigurationError: Each such setting.
    """
    delivery = settings.delivery
    asked = {
        "record_attempts": delivery.record_attempts,
        "batch_size": delivery.batch_size > 1,
        "hold_until_ack": delivery.hold_until_ack,
        "in_progress_destination": delivery.in_progress,
        "durable_subscription_deletion": settings.delete_durable,
    }
    if faults := tuple(
        f"{name}: a stream of deliveries doesn't do it; expected a listener" for name in asked if asked[name]
    ):
        raise ConfigurationError(faults)
