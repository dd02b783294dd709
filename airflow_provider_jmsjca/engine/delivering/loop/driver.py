"""The driver for an event loop, without a thread or a connection of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import assert_never

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
from airflow_provider_jmsjca.core.delivery.machine import DeliveryMachine
from airflow_provider_jmsjca.core.delivery.outage import RefusedDestinations
from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.core.message.delivery_memory import DeliveryMemory
from airflow_provider_jmsjca.core.redelivery import RedeliveryTracker
from airflow_provider_jmsjca.engine.connecting.async_connection import AsyncConnection
from airflow_provider_jmsjca.engine.connecting.threads import SerialExecutor
from airflow_provider_jmsjca.engine.delivering.attempt_log import (
    AttemptLookup,
    attempt_log_of,
    recorded,
    undo_attempts_in,
)
from airflow_provider_jmsjca.engine.delivering.consumers import Consumers, InDoubt, watches
from airflow_provider_jmsjca.engine.delivering.driver import AboutMessages, Driver, Settling
from airflow_provider_jmsjca.engine.delivering.loop.link import LoopLink
from airflow_provider_jmsjca.engine.delivering.loop.outstanding import OutstandingDeliveries
from airflow_provider_jmsjca.engine.delivering.loop.receiver import LoopReceiver
from airflow_provider_jmsjca.engine.delivering.loop.signal import Signal
from airflow_provider_jmsjca.engine.delivering.receiver import ConsumerConnection, ReceiveBuffer, Work
from airflow_provider_jmsjca.engine.delivering.settings import ListenerSettings
from airflow_provider_jmsjca.engine.watching.backlog import watch_for_stuck_messages
from airflow_provider_jmsjca.errors import (
    ConfigurationError,
    JmsError,
    PermanentBrokerError,
    TransientBrokerError,
    TransientStoreError,
)
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.transports.base import Received

_log = safe_logger(__name__)


class LoopDriver(Driver):
    """Drives the delivery machine in an event loop, and hands out deliveries in that loop.

    Decisions that involve the broker run in a serial executor, one after the other. A slow move delays the
    acknowledgements after it.

    Args:
        settings: Settings of the stream, as `shared` returns them.
        connection: Lends connections.
        memory: Remembers messages with an outcome.
        tracker: Attempt counts.
        chance: Returns a random number, 0 up to but not including 1.
        consuming: Set while the broker has confirmed the subscriptions.

    Attributes:
        handed_out: Deliveries that the user holds or can take next.
        stopped: Whether the driver has stopped and makes no more deliveries.
        changed: Set after each change that a waiting reader must check.
    """

    # Most of a thousand streams are idle, so an idle stream must be small.
    __slots__ = (
        "_alarm",
        "_asked",
        "_asking",
        "_closed",
        "_events",
        "_executor",
        "_feeding",
        "_in_doubt",
        "_looks",
        "_loop",
        "_memory",
        "_refusals",
        "_source",
        "_unsent",
        "_written",
        "changed",
        "handed_out",
        "stopped",
    )  # fmt: skip
    receiver: LoopReceiver
    link: LoopLink

    def __init__(
        self,
        settings: ListenerSettings,
        connection: AsyncConnection,
        *,
        memory: DeliveryMemory[Received],
        tracker: RedeliveryTracker,
        chance: Callable[[], float],
        consuming: Signal,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        attempt_log = attempt_log_of(settings, keeps_ids=True)
        super().__init__(
            settings,
            DeliveryMachine(
                settings.delivery,
                tracker,
                chance,
                take_back=undo_attempts_in(attempt_log, settings.delivery.sources),
            ),
            attempt_log=attempt_log,
            clock=self._loop.time,
            lock=contextlib.nullcontext(),
            consuming=consuming,
        )
        self._source = connection
        self._memory = memory
        self._refusals = RefusedDestinations()
        self._unsent: ConsumerConnection | None = None
        self._in_doubt = InDoubt(None if attempt_log is None else attempt_log.left_in_doubt)
        self._executor = SerialExecutor(self._loop.call_later)
        self._events: list[Event] = []
        self._feeding = False
        self._alarm: asyncio.TimerHandle | None = None
        self._looks: list[asyncio.Task[None]] = []
        self._asked: list[tuple[ReceiveBuffer, RecordAttempt]] = []
        self._asking = self._closed = False
        self._written: asyncio.Future[None] = self._loop.create_future()
        self.stopped = False
        self.changed = Signal()
        self.link = self._new_link()
        self.receiver = LoopReceiver(
            settings,
            self.machine,
            self.counters,
            ReceiveBuffer.shut(self.link),
            memory=memory,
            feed=self.feed,
            flush_log=self.flush_log,
        )
        self.handed_out = OutstandingDeliveries(
            self.counters, memory, self.clock, self.feed, self.changed.set, raised=self._raised
        )

    def _new_link(self) -> LoopLink:
        receivers = Consumers(self.settings, self._refusals, self._in_doubt)
        return LoopLink(self.settings, self._source, self, receivers, self._executor)

    def start(self) -> None:
        """Begin to consume."""
        self.counters.began = self.clock()
        self.feed(Start())

    # -- events in ----------------------------------------------------------------------------------------

    def handle(self, events: Iterable[Event]) -> list[Work]:
        """Pass events to the machine and carry out its decisions; return no work, because all is done."""
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
        """Do nothing: `handle` has already done the work."""

    def report(self, link: ConsumerConnection, event: Event) -> None:
        """Handle an event of a connection; withdraw deliveries that can no longer be settled."""
        super().report(link, event)
        if not isinstance(event, ConnectionOpened):
            self.handed_out.withdraw()
            self.changed.set()

    def _link_is_up(self, link: ConsumerConnection) -> None:
        if not self._looks and link.connection.capabilities.backlog:
            self._looks = [
                self._loop.create_task(watch_for_stuck_messages(watch, self._source.in_thread))
                for watch in watches(self.settings, self._source.open_probe_connection, self, link.connection)
            ]

    def arrived(self, buffer: ReceiveBuffer) -> None:
        """Schedule a check of the arrived messages."""
        self.receiver.arrived(buffer)

    def idle_for(self) -> float:
        """Return for how many seconds the stream has had nothing to do; 0 while busy or not connected."""
        buffer = self.receiver.buffer
        if not buffer.open or buffer.held or buffer.arrivals or self.counters.active:
            return 0.0
        return self.clock() - self.last_activity

    def keeps(self) -> bool:
        """Return whether unsettled messages remain although no work on them is pending."""
        return self._memory.has_unsettled

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
                buffer = self.receiver.buffer
                received, _ = buffer.held[decision.delivery]
                self.handed_out.deliver(decision, buffer, self.receiver.identity(received))
            case CommitUnit() | MoveMessage() | DeleteMessage() | Park():
                self._settle(self.receiver.buffer, decision)
            case RollBackUnit(unit=unit):
                self.counters.rolled_back += self.handed_out.rolled_back(unit)
            case Leave(delivery=delivery):
                self._leave(delivery)
            case RecordAttempt():
                self._asked.append((self.receiver.buffer, decision))
                self._ask()
            case DeliverEndOfBatch() | Stage():
                raise AssertionError(f"{type(decision).__name__} was refused when the stream was made")
            case _:
                assert_never(decision)

    def _start_over(self, buffer: ReceiveBuffer) -> None:
        self.receiver.restart_with(buffer)

    def _close_link(self, *, clean: bool) -> None:
        del clean  # a stream doesn't delete subscriptions
        if self.attempt_log is not None:  # before messages return to the broker, see `AttemptLog.undo`
            self._executor.submit(self.attempt_log.flush)
        self.link.close()

    def _end(self) -> None:
        self.stopped = True
        self.changed.set()

    # -- the store ----------------------------------------------------------------------------------------

    def _ask(self) -> None:
        """Store all requested attempts in one write."""
        if self._asking or not self._asked or self.attempt_log is None:
            return
        self._asking = True
        attempt_log, asked, link = self.attempt_log, tuple(self._asked), self.link
        self._asked.clear()
        names: dict[int, str] = {}
        handled_names: dict[str, str] = {}
        for buffer, decision in asked:
            number = decision.delivery
            names[number] = name = attempt_log.name(decision.message_id or "", buffer.origin(number))
            _, message = buffer.held.get(number, (None, None))
            if message is not None and name not in handled_names:
                handled_names[name] = attempt_log.handled_name(message, buffer.origin(number))

        def work() -> None:
            found: dict[str, AttemptLookup] = {}
            fault: Exception | None = None
            try:
                found = attempt_log.begin(frozenset(names.values()), handled_names=handled_names)
            except Exception as error:  # noqa: BLE001 - a serial executor's edge: the messages wait after any error
                fault = error
            link.post(self._answered, asked, names, found, fault)

        self._executor.submit(work)

    def _answered(
        self,
        asked: tuple[tuple[ReceiveBuffer, RecordAttempt], ...],
        names: Mapping[int, str],
        found: dict[str, AttemptLookup],
        fault: Exception | None,
    ) -> None:
        self._asking = False
        if fault is not None and not isinstance(fault, TransientStoreError):
            _log.error(
                "%s: attempts could not be recorded; their messages wait, retrying",
                self.settings.name,
                exc_info=fault,
            )
        events: list[Event] = []
        for buffer, decision in asked:
            number = decision.delivery
            answer = found.pop(names[number], None)
            if fault is not None or answer is None:  # a second message with the same id retries
                failure = Failure.of(
                    fault or JmsError("another message with the same id is recorded first"), with_trace=False
                )
                events.append(AttemptNotRecorded(delivery=number, failure=failure))
            elif answer.handled and self._is_repetition(buffer, number, unsettled=answer.attempt > 1):
                events.append(FoundHandled(delivery=number))
            else:
                events.append(recorded(self.settings, number, answer))
        self.feed(*events)
        self._ask()
        if self._closed:  # too late for this answer
            self._write_what_waits()

    def _is_repetition(self, buffer: ReceiveBuffer, number: int, *, unsettled: bool) -> bool:
        """Return whether a message that equals a handled message is its redelivery, not a new message.

        With `drop_duplicates`, or if the broker creates the ids, every such message is a redelivery. Where
        producers create the ids, they may send equal messages on purpose. Then a message is a redelivery only
        if it has the redelivered flag. Browsing a queue may set this flag too. So the message must also have
        a timestamp, or the store must list the handled message as unsettled.

        Args:
            buffer: The receive buffer of the message.
            number: Delivery number of the message.
            unsettled: Whether the store lists the handled message as unsettled.
        """
        if self.settings.drop_duplicates or self._memory.stable:
            return True
        received, _ = buffer.held[number]
        message = received.readable
        return message is not None and message.redelivered and (bool(message.timestamp) or unsettled)

    def _raised(self, buffer: ReceiveBuffer, number: int, message_id: str | None, failure: Failure) -> None:
        secrets = buffer.link.connection.secrets
        self.counters.note_failure(failure, secrets)
        if self.attempt_log is not None and message_id is not None and number in buffer.held:
            name = self.attempt_log.name(message_id, buffer.origin(number))
            self.attempt_log.failed(name, failure, secrets)

    def _write_what_waits(self) -> None:
        self._closed = True
        if self.attempt_log is not None:
            self._executor.submit(self.attempt_log.end)
        link = self.link
        self._executor.submit(lambda: link.post(self._set_written))

    def _set_written(self) -> None:
        if not self._written.done():
            self._written.set_result(None)

    def _settle(self, buffer: ReceiveBuffer, decision: Settling) -> None:
        link = self.link

        def work() -> None:
            link.post(self._conclude, buffer, decision, self.settler.attempt(buffer, decision))

        self._executor.submit(work)

    def _conclude(self, buffer: ReceiveBuffer, decision: Settling, error: Exception | None) -> None:
        if self.settings.copies or isinstance(decision, MoveMessage | Park):
            self._note_sending(buffer.link, error)
        self.settler.conclude(buffer, decision, error)
        if error is None and buffer is self.receiver.buffer:
            settled = decision.acknowledge if isinstance(decision, CommitUnit) else (decision.delivery,)
            self._memory.mark_settled(settled)
        self._take_more()

    def _note_sending(self, link: ConsumerConnection, error: Exception | None) -> None:
        """Note the outcome of a send; after failures over two connections, stop sharing the connection.

        Some brokers close the connection with each refusal, which would disturb the connection's other users.
        """
        if not isinstance(error, (PermanentBrokerError, TransientBrokerError)):
            self._unsent = None
        elif self._unsent is None:
            self._unsent = link  # it may be an outage
        elif self._unsent is not link:
            self._source.unshared = True

    def _take_more(self) -> None:
        """Take further messages after an in-flight message was settled, or left unsettled at the broker."""
        if (buffer := self.receiver.buffer).arrivals:
            self.arrived(buffer)

    def _leave(self, number: int) -> None:
        message_id, origin = self.receiver.leave(number)
        _log.error(
            "%s: message %s stays unsettled on %s; such messages take %d of %s prefetch places",
            self.settings.name,
            message_id,
            origin,
            self._memory.left_unsettled,
            self.settings.subscription.prefetch or "the broker's",
        )
        self._take_more()

    def _settle_again(self) -> None:
        self._executor.submit(self.receiver.repeated.settle)

    # -- the end ------------------------------------------------------------------------------------------

    async def close(self, *, commit_within: float, within: float) -> None:
        """Finish settlements, hand other messages back, release the connection, end the attempt log.

        Args:
            commit_within: Seconds for settlements under way.
            within: Seconds for the whole close; after that, a thread continues it in the background.
        """
        end = self.clock() + within
        try:
            self.feed(StopAsked(reason="the stream is closed", within=timedelta(seconds=commit_within)))
            self.handed_out.end_all()
            while not self.stopped and (left := end - self.clock()) > 0:
                self.changed.clear()
                await self.changed.wait(left)
        finally:
            # Another user of the delivery memory must not confuse messages that go back to the broker with
            # those that have been `returned`.
            self.receiver.restart_with(ReceiveBuffer.shut(self.link))
            self._write_what_waits()
            self.link.close()
            if self._alarm is not None:
                self._alarm.cancel()
            for look in self._looks:
                look.cancel()
        await asyncio.wait({self.link.closed, self._written}, timeout=max(0.0, end - self.clock()))


def shared(settings: ListenerSettings) -> ListenerSettings:
    """Return the settings for a stream that settles in any order, over a shared connection."""
    first, *further = (replace(each, in_order=False, alone=False) for each in settings.subscriptions)
    return replace(settings, subscription=first, further=tuple(further))


def refuse_unsupported(settings: ListenerSettings) -> None:
    """Refuse settings that a stream of deliveries doesn't support.

    Raises:
        ConfigurationError: Names each unsupported setting.
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
