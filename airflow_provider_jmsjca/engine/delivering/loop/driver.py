"""The shell for an event loop: no thread and no connection of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import assert_never

from airflow_provider_jmsjca.core.delivery import DeliveryMachine
from airflow_provider_jmsjca.core.delivery.decisions import (
    CommitUnit,
    DeleteMessage,
    Deliver,
    DeliverEndOfBatch,
    Leave,
    MoveMessage,
    Park,
    RecordAttempt,
    RollBackUnit,
    Stage,
)
from airflow_provider_jmsjca.core.delivery.events import (
    AttemptNotRecorded,
    ConnectionOpened,
    Event,
    FoundHandled,
    Start,
    StopAsked,
    Tick,
)
from airflow_provider_jmsjca.core.delivery.outage import Refusals
from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.core.redelivery import RedeliveryTracker
from airflow_provider_jmsjca.engine.connecting.async_connection import AsyncConnection
from airflow_provider_jmsjca.engine.connecting.threads import Lane
from airflow_provider_jmsjca.engine.delivering.admission import Bearer, Intake, Once, Work
from airflow_provider_jmsjca.engine.delivering.driver import AboutMessages, Driver, Settling
from airflow_provider_jmsjca.engine.delivering.ledger import Found, ledger_of, recorded, take_back_in
from airflow_provider_jmsjca.engine.delivering.loop.admission import LoopAdmission
from airflow_provider_jmsjca.engine.delivering.loop.handed_out import HandedOut
from airflow_provider_jmsjca.engine.delivering.loop.link import LoopLink
from airflow_provider_jmsjca.engine.delivering.loop.signal import Signal
from airflow_provider_jmsjca.engine.delivering.receivers import InDoubt, Receivers, watches
from airflow_provider_jmsjca.engine.delivering.settings import ListenerSettings
from airflow_provider_jmsjca.engine.watching.backlog import look_for_what_stays
from airflow_provider_jmsjca.errors import (
    ConfigurationError,
    JmsError,
    PermanentBrokerError,
    TransientBrokerError,
    TransientStoreError,
)
from airflow_provider_jmsjca.logs import safe_logger

_log = safe_logger(__name__)


class LoopDriver(Driver):
    """Drives the machine in an event loop, and hands deliveries out there.

    Decisions that touch the broker run in a lane, one after the other. A slow move holds up the
    acknowledgements behind it.

    Args:
        settings: How to consume, as `shared` returns them.
        connection: Lends connections.
        once: Which messages have an outcome.
        tracker: Counts of attempts.
        chance: A random number, 0 up to but not including 1.
        consuming: Set while the broker has confirmed the subscriptions.

    Attributes:
        handed_out: What the user has, or may have next.
        stopped: Whether nothing more comes.
        changed: Set when there is something to look at.
    """

    # Of a thousand most do nothing: what is empty is small.
    __slots__ = (
        "_alarm", "_asked", "_asking", "_closed", "_events", "_feeding", "_in_doubt", "_lane", "_looks",
        "_loop", "_once", "_refusals", "_source", "_unsent", "_written", "changed", "handed_out", "stopped",
    )  # fmt: skip
    admission: LoopAdmission
    link: LoopLink

    def __init__(
        self,
        settings: ListenerSettings,
        connection: AsyncConnection,
        *,
        once: Once,
        tracker: RedeliveryTracker,
        chance: Callable[[], float],
        consuming: Signal,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        ledger = ledger_of(settings, keeps_ids=True)
        super().__init__(
            settings,
            DeliveryMachine(
                settings.delivery,
                tracker,
                chance,
                take_back=take_back_in(ledger, settings.delivery.sources),
            ),
            ledger=ledger,
            clock=self._loop.time,
            lock=contextlib.nullcontext(),
            consuming=consuming,
        )
        self._source = connection
        self._once = once
        self._refusals = Refusals()
        self._unsent: Bearer | None = None
        self._in_doubt = InDoubt(None if ledger is None else ledger.left_in_doubt)
        self._lane = Lane(self._loop.call_later)
        self._events: list[Event] = []
        self._feeding = False
        self._alarm: asyncio.TimerHandle | None = None
        self._looks: list[asyncio.Task[None]] = []
        self._asked: list[tuple[Intake, RecordAttempt]] = []
        self._asking = self._closed = False
        self._written: asyncio.Future[None] = self._loop.create_future()
        self.stopped = False
        self.changed = Signal()
        self.link = self._new_link()
        self.admission = LoopAdmission(
            settings,
            self.machine,
            self.tally,
            Intake.shut(self.link),
            once=once,
            feed=self.feed,
            speak=self.speak,
        )
        self.handed_out = HandedOut(
            self.tally, once, self.clock, self.feed, self.changed.set, raised=self._raised
        )

    def _new_link(self) -> LoopLink:
        receivers = Receivers(self.settings, self._refusals, self._in_doubt)
        return LoopLink(self.settings, self._source, self, receivers, self._lane)

    def start(self) -> None:
        """Begin to consume."""
        self.tally.begin(self.clock())
        self.feed(Start())

    # -- events in ----------------------------------------------------------------------------------------

    def handle(self, events: Iterable[Event]) -> list[Work]:
        """Tell the machine, and carry out what it decides: there is nothing left to do for whoever asks."""
        self.last_activity = self.clock()
        self._events.extend(events)
        if self._feeding:
            return []
        self._feeding = True
        try:
            while self._events:
                for decision in self.machine.handle(self._events.pop(0), self.clock()):
                    self.carry_out(decision, [])
        finally:
            self._feeding = False
        self._arm()
        return []

    def post(self, todo: list[Work]) -> None:
        """Do nothing: all is done when `handle` returns."""

    def report(self, link: Bearer, event: Event) -> None:
        """Something happened to a link; what can't be settled any more is taken back before it is seen."""
        super().report(link, event)
        if not isinstance(event, ConnectionOpened):
            self.handed_out.withdraw()
            self.changed.set()

    def _link_is_up(self, link: Bearer) -> None:
        if not self._looks and link.connection.capabilities.backlog:
            self._looks = [
                self._loop.create_task(look_for_what_stays(watch, self._source.in_thread))
                for watch in watches(self.settings, self._source.look, self, link.connection)
            ]

    def opening(self, intake: Intake) -> None:
        """The outcomes of whatever was settled over earlier connections are known: this is what they were."""
        if intake is self.admission.intake:
            stable = intake.link.connection.capabilities.stable_message_id
            self.admission.settled.connected(stable=stable)

    def arrived(self, intake: Intake) -> None:
        """Something has come."""
        self.admission.arrived(intake)

    def idle_for(self) -> float:
        """For how many seconds there has been nothing to do; 0 while there is, and while not connected."""
        intake = self.admission.intake
        if not intake.open or intake.held or intake.arrivals or self.tally.active:
            return 0.0
        return self.clock() - self.last_activity

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

    def _act_on(self, decision: AboutMessages, todo: list[Work]) -> None:
        del todo  # nothing is left to do
        match decision:
            case Deliver():
                intake = self.admission.intake
                received, _ = intake.held[decision.delivery]
                self.handed_out.deliver(decision, intake, self.admission.key(received))
            case CommitUnit() | MoveMessage() | DeleteMessage() | Park():
                self._settle(self.admission.intake, decision)
            case RollBackUnit(unit=unit):
                self.tally.roll_back(self.handed_out.rolled_back(unit))
            case Leave(delivery=delivery):
                self._leave(delivery)
            case RecordAttempt():
                self._asked.append((self.admission.intake, decision))
                self._ask()
            case DeliverEndOfBatch() | Stage():
                raise AssertionError(f"{type(decision).__name__} was refused when the stream was made")
            case _:
                assert_never(decision)

    def _begin_anew(self, intake: Intake) -> None:
        self.admission.begin_anew(intake, self.handed_out.returned)
        self.handed_out.begin()

    def _close_link(self, *, clean: bool) -> None:
        del clean  # a stream doesn't delete subscriptions
        self.link.close()

    def _end(self) -> None:
        self.stopped = True
        self.changed.set()

    # -- the store ----------------------------------------------------------------------------------------

    def _ask(self) -> None:
        """Have the attempts stored that are asked for, all in one write."""
        if self._asking or not self._asked or self.ledger is None:
            return
        self._asking = True
        ledger, asked, link = self.ledger, tuple(self._asked), self.link
        self._asked.clear()
        names: dict[int, str] = {}
        handled_names: dict[str, str] = {}
        for intake, decision in asked:
            number = decision.delivery
            names[number] = name = ledger.name(decision.message_id or "", intake.origin(number))
            _, message = intake.held.get(number, (None, None))
            if message is not None and name not in handled_names:
                handled_names[name] = ledger.handled_name(message, intake.origin(number))

        def work() -> None:
            found: dict[str, Found] = {}
            fault: Exception | None = None
            try:
                found = ledger.begin(frozenset(names.values()), handled_names=handled_names)
            except Exception as error:  # noqa: BLE001 - a lane's edge: the messages wait whatever it was
                fault = error
            link.post(self._answered, asked, names, found, fault)

        self._lane.submit(work)

    def _answered(
        self,
        asked: tuple[tuple[Intake, RecordAttempt], ...],
        names: Mapping[int, str],
        found: dict[str, Found],
        fault: Exception | None,
    ) -> None:
        self._asking = False
        if fault is not None and not isinstance(fault, TransientStoreError):
            _log.error("%s: attempts could not be recorded", self.settings.name, exc_info=fault)
        events: list[Event] = []
        for intake, decision in asked:
            number = decision.delivery
            answer = found.pop(names[number], None)
            if fault is not None or answer is None:  # a second message of the same id asks once more
                failure = Failure.of(fault or JmsError("another of its id is before it"), with_trace=False)
                events.append(AttemptNotRecorded(delivery=number, failure=failure))
            elif answer.handled and self._is_repetition(intake, number, unsettled=answer.attempt > 1):
                events.append(FoundHandled(delivery=number))
            else:
                events.append(recorded(self.settings, number, answer))
        self.feed(*events)
        self._ask()
        if self._closed:  # nobody has waited for this answer
            self._write_what_waits()

    def _is_repetition(self, intake: Intake, number: int, *, unsettled: bool) -> bool:
        """Tell whether a message repeats the handled one that it equals.

        Where the producer makes the ids, it may have sent equal messages on purpose, and a look at the queue
        flags messages as redelivered. Such a message is a repetition if it carries the time it was sent, or
        if the store lists the handled one as unsettled.
        """
        if self.settings.drop_duplicates or self.admission.settled.stable:
            return True
        received, _ = intake.held[number]
        message = received.readable
        return message is not None and message.redelivered and (bool(message.timestamp) or unsettled)

    def _raised(self, intake: Intake, number: int, message_id: str | None, failure: Failure) -> None:
        if self.ledger is not None and message_id is not None and number in intake.held:
            name = self.ledger.name(message_id, intake.origin(number))
            self.ledger.failed(name, failure, intake.link.connection.secrets)

    def _write_what_waits(self) -> None:
        self._closed = True
        if self.ledger is not None:
            self._lane.submit(self.ledger.end)
        link = self.link
        self._lane.submit(lambda: link.post(self._set_written))

    def _set_written(self) -> None:
        if not self._written.done():
            self._written.set_result(None)

    def _settle(self, intake: Intake, decision: Settling) -> None:
        link = self.link

        def work() -> None:
            link.post(self._conclude, intake, decision, self.settler.attempt(intake, decision))

        self._lane.submit(work)

    def _conclude(self, intake: Intake, decision: Settling, error: Exception | None) -> None:
        if self.settings.copies or isinstance(decision, MoveMessage | Park):
            self._note_sending(intake.link, error)
        self.settler.conclude(intake, decision, error)
        if error is None and intake is self.admission.intake:
            settled = decision.acknowledge if isinstance(decision, CommitUnit) else (decision.delivery,)
            self.handed_out.settled(settled)
        self._take_more()

    def _note_sending(self, link: Bearer, error: Exception | None) -> None:
        """Stay apart when sending fails over a second connection: some brokers close it with each refusal."""
        if not isinstance(error, (PermanentBrokerError, TransientBrokerError)):
            self._unsent = None
        elif self._unsent is None:
            self._unsent = link  # it may be an outage
        elif self._unsent is not link:
            self._source.apart = True

    def _take_more(self) -> None:
        """A message is in hand no longer: there may be room for others."""
        if (intake := self.admission.intake).arrivals:
            self.arrived(intake)

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
        self._take_more()

    def _settle_again(self) -> None:
        settled = self.admission.settled
        self._lane.submit(lambda: settled.settle_again(self.settings.name))

    # -- the end ------------------------------------------------------------------------------------------

    async def close(self, *, commit_within: float, within: float) -> None:
        """Let what is being settled be settled, hand back the rest, give back the connection, end the ledger.

        Args:
            commit_within: Seconds for what is being settled.
            within: Seconds for all of it; after them a thread goes on alone.
        """
        end = self.clock() + within
        self.feed(StopAsked(reason="the stream is closed", within=timedelta(seconds=commit_within)))
        self.handed_out.end_all()
        try:
            while not self.stopped and (left := end - self.clock()) > 0:
                self.changed.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.changed.wait(), left)
        finally:
            # Whoever shares what is known must not take what goes back for what was returned before.
            self.admission.begin_anew(Intake.shut(self.link), self.handed_out.returned)
            self._write_what_waits()
            self.link.close()
            if self._alarm is not None:
                self._alarm.cancel()
            for look in self._looks:
                look.cancel()
        await asyncio.wait({self.link.closed, self._written}, timeout=max(0.0, end - self.clock()))


def shared(settings: ListenerSettings) -> ListenerSettings:
    """Return the settings of who ends deliveries in any order, over a connection that others use too."""
    first, *further = (replace(each, in_order=False, alone=False) for each in settings.subscriptions)
    return replace(settings, subscription=first, further=tuple(further))


def refuse_unsupported(settings: ListenerSettings) -> None:
    """Refuse what a stream of deliveries doesn't do.

    Raises:
        ConfigurationError: Each such setting.
    """
    delivery = settings.delivery
    asked = {
        "record_attempts": delivery.record_attempts and settings.store is None,
        "batch_size": delivery.batch_size > 1,
        "hold_until_ack": delivery.hold_until_ack,
        "in_progress_destination": delivery.in_progress,
        "durable_subscription_deletion": settings.delete_durable,
    }
    if faults := tuple(
        f"{name}: a stream of deliveries doesn't do it; expected a listener" for name in asked if asked[name]
    ):
        raise ConfigurationError(faults)
