"""Drives the delivery machine: events in, decisions out, messages settled.

The base of both drivers. A subclass decides where work runs: `threaded.dispatcher` in a pool of threads,
`loop.driver` in an event loop with a serial executor.
"""

from __future__ import annotations

import functools
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Final, Protocol, TypeAlias, assert_never

from airflow_provider_jmsjca.core.copies.dead_letter import (
    WAYS,
    ConsumedFrom,
    send_letter,
    without_secrets,
)
from airflow_provider_jmsjca.core.delivery.decisions import (
    CloseConnection,
    CloseConsumer,
    CommitUnit,
    Connect,
    Decision,
    DeleteMessage,
    Deliver,
    DeliverEndOfBatch,
    Leave,
    Log,
    LogLevel,
    MoveMessage,
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
    ConnectionLost,
    ConnectionOpened,
    ConsumerOpened,
    Event,
    ReconnectAsked,
    UnitCommitted,
    UnitFailed,
    UnitInDoubt,
    UnitLost,
)
from airflow_provider_jmsjca.core.delivery.machine import DeliveryMachine
from airflow_provider_jmsjca.core.delivery.settlement import TakeOut
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.options.choices import InDoubtEvents
from airflow_provider_jmsjca.core.redelivery import MessageState
from airflow_provider_jmsjca.core.redelivery.tracker import UNSEEN
from airflow_provider_jmsjca.engine.delivering.attempt_log import AHEAD, AttemptLog, delayed_messages_of
from airflow_provider_jmsjca.engine.delivering.delayed_messages import DelayedMessages, ParkingUnit, parked
from airflow_provider_jmsjca.engine.delivering.delivery import Delivery, context_name
from airflow_provider_jmsjca.engine.delivering.receiver import (
    ConsumerConnection,
    ReceiveBuffer,
    Receiver,
    Work,
)
from airflow_provider_jmsjca.engine.delivering.settings import ListenerSettings
from airflow_provider_jmsjca.engine.delivering.statistics import Counters
from airflow_provider_jmsjca.engine.moving import check_target, commit_with_fallback, rolled_back
from airflow_provider_jmsjca.errors import (
    ConfigurationError,
    ConnectionLostError,
    InDoubtError,
    JmsError,
    PermanentBrokerError,
    TransientStoreError,
)
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.store.base import LimboEntry
from airflow_provider_jmsjca.transports.base import Outgoing, Received, UnitOfWork

_log = safe_logger("airflow_provider_jmsjca.listener")

Settling: TypeAlias = CommitUnit | TakeOut
AboutMessages: TypeAlias = Deliver | DeliverEndOfBatch | RecordAttempt | RollBackUnit | Leave | Settling

_COME_BACK = {Park, Stage}
_LOG_LEVELS: Final = {
    LogLevel.DEBUG: logging.DEBUG,
    LogLevel.INFO: logging.INFO,
    LogLevel.WARNING: logging.WARNING,
    LogLevel.ERROR: logging.ERROR,
}


class Flag(Protocol):
    """The common interface of `threading.Event` and `asyncio.Event`."""

    def set(self) -> None:
        """Wake all waiters."""

    def clear(self) -> None:
        """Let later waiters block until the next `set`."""


class Driver(ABC):
    """Drives the delivery machine of one run and carries out its decisions.

    Base of `Dispatcher` and `LoopDriver`.

    Args:
        settings: Settings of the listener.
        machine: A new machine. Besides the driver only `Receiver` and `FastPath` call it, under the same
            lock.
        clock: Returns seconds, monotonic.
        lock: Guards the machine and the state of the driver.
        consuming: Set while the broker has confirmed the subscriptions.
        gives_up: Called when the broker refuses permanently; returns whether to stop. Otherwise the run
            retries.
        attempt_log: The records in the store; `None`: nothing is stored.
        calls_before: Calls of the handler in earlier runs.

    Attributes:
        settings, machine, clock, lock, attempt_log: The arguments of the same names.
        counters: Message counters.
        units: Units of work begun at the broker, until they are committed or rolled back.
        sending: Units of work to which a handler has added messages.
        settler: Carries out settlements.
        receiver: Passes messages to the machine; each subclass makes its own.
        link: The current connection, or the attempt to open it; each subclass makes its own.
        last_activity: When a message last arrived or was settled, on the clock.
        stop_reason: Why the run stopped; empty until it has stopped.
        fault: The refusal that stops the run; `None` if nothing or another reason stops it.
        refusal: The broker's permanent refusal, if one is known; `None` otherwise.
        outage: Error of the last connection attempt or of the connection loss; empty while connected.
        answered: Whether the first attempt to connect and subscribe has ended.
    """

    __slots__ = (
        "_consuming",
        "_gives_up",
        "_lines",
        "_unit_sizes",
        "answered",
        "attempt_log",
        "clock",
        "counters",
        "fault",
        "last_activity",
        "link",
        "lock",
        "machine",
        "outage",
        "receiver",
        "refusal",
        "sending",
        "settings",
        "settler",
        "stop_reason",
        "units",
    )  # fmt: skip
    receiver: Receiver
    link: ConsumerConnection

    def __init__(
        self,
        settings: ListenerSettings,
        machine: DeliveryMachine,
        *,
        clock: Callable[[], float],
        lock: AbstractContextManager[object],
        consuming: Flag,
        gives_up: Callable[[], bool] = lambda: True,
        attempt_log: AttemptLog | None = None,
        calls_before: int = 0,
    ) -> None:
        self.settings = settings
        self.attempt_log = attempt_log
        self.machine = machine
        self.clock = clock
        self.lock = lock
        self.counters = Counters(calls_before)
        self.units: dict[int, UnitOfWork] = {}
        self.sending: set[int] = set()
        self.last_activity = clock()
        self.stop_reason = ""
        self.fault: JmsError | None = None
        self.refusal: JmsError | None = None
        self.outage = ""
        self.answered = False
        self._consuming = consuming
        self._gives_up = gives_up
        self._lines: list[Log] = []
        self._unit_sizes: dict[int, int] = {}
        self.settler = Settler(self)

    # -- hooks of the shell ------------------------------------------------------------------------------

    @abstractmethod
    def handle(self, events: Iterable[Event]) -> list[Work]:
        """Pass events to the machine, and return the next work.

        Call it under the lock, and call `flush_log` after the lock is released.
        """

    @abstractmethod
    def post(self, todo: list[Work]) -> None:
        """Queue work for other threads or tasks."""

    @abstractmethod
    def arrived(self, buffer: ReceiveBuffer) -> None:
        """Schedule a check of the receive buffer for messages; call it from any thread."""

    @abstractmethod
    def idle_for(self) -> float:
        """Return for how many seconds the run has had nothing to do; 0 while busy.

        Call it from any thread.
        """

    @abstractmethod
    def keeps(self) -> bool:
        """Return whether unsettled messages remain although no work on them is pending.

        Call it from any thread.
        """

    @abstractmethod
    def _new_link(self) -> ConsumerConnection:
        """Return a connection that is not opened yet."""

    @abstractmethod
    def _link_is_up(self, link: ConsumerConnection) -> None:
        """Prepare for consuming over a new connection; called under the lock."""

    @abstractmethod
    def _start_over(self, buffer: ReceiveBuffer) -> None:
        """Switch to the receive buffer of new consumers; unsettled messages return to the broker."""

    @abstractmethod
    def _close_link(self, *, clean: bool) -> None:
        """Close the connection."""

    @abstractmethod
    def _act_on(self, decision: AboutMessages, todo: list[Work]) -> None:
        """Carry out a decision about messages, or append it to the work."""

    @abstractmethod
    def _settle_again(self) -> None:
        """Settle repeated messages: messages that were redelivered although they were settled."""

    @abstractmethod
    def _end(self) -> None:
        """End the run: no more messages arrive."""

    # -- events in ----------------------------------------------------------------------------------------

    def feed(self, *events: Event) -> None:
        """Pass events to the machine, and queue the resulting work."""
        with self.lock:
            todo = self.handle(events)
        self.post(todo)
        self.flush_log()

    def report(self, link: ConsumerConnection, event: Event) -> None:
        """Handle an event of the current connection; events of earlier connections are ignored."""
        with self.lock:
            told = link.is_lost
            # If a broker closes the connection with a refusal, the close may be reported first.
            if link is not self.link or (told and not (isinstance(event, ConnectFailed) and event.permanent)):
                return
            self.answered |= self.machine.suspended or not isinstance(event, ConnectionOpened)
            if isinstance(event, ConnectionOpened):
                self.counters.connections += 1
                self.refusal, self.outage = None, ""
                self._link_is_up(link)
            elif isinstance(event, (ConnectFailed, ConnectionLost)):
                if isinstance(event, ConnectionLost):
                    self.counters.outages += 1
                link.mark_lost()
                self._shut()
                link.close()
                self.refusal = None
                self.outage = "" if event.failure is None else event.failure.message
                if isinstance(event, ConnectFailed) and event.permanent:
                    self.refusal = link.fault
                    self.fault = link.fault if self._gives_up() else None
                    event = replace(event, permanent=self.fault is not None)
                    if told and self.fault is None:
                        return
            elif isinstance(event, ReconnectAsked):
                link.mark_lost()  # the machine has it closed
                self.refusal, self.outage = None, event.reason
            todo = self.handle((event,))
        self.post(todo)
        self.flush_log()

    def opened(self, buffer: ReceiveBuffer) -> None:
        """Handle the broker's confirmation of the consumers; idle time is measured from now on."""
        buffer.ready = True
        with self.lock:
            if buffer is not self.receiver.buffer or buffer.link.is_lost:
                return
            self.answered = True
            todo = self.handle((ConsumerOpened(),))
            if buffer.open:
                self._consuming.set()
        self.post(todo)
        self.flush_log()
        self.arrived(buffer)

    # -- decisions out ------------------------------------------------------------------------------------

    def carry_out(self, decision: Decision, todo: list[Work]) -> None:
        """Carry out a decision, or add it to the work.

        Args:
            decision: A decision of the machine.
            todo: The work that remains to be done is appended to this list.
        """
        match decision:
            case Log():
                self._lines.append(decision)
            case Wait():
                pass
            case Connect():
                self.link = self._new_link()
                self.link.start()
            case OpenConsumer():
                buffer = ReceiveBuffer(self.link)
                self._start_over(buffer)
                self.machine.subscribed()
                self.link.consume(buffer)
            case CloseConsumer():
                self._shut()
                self.link.stop_consuming()
            case CloseConnection(clean=clean):
                self._shut()
                self._close_link(clean=clean)
            case Stopped(reason=reason):
                self.stop_reason = reason
                self._end()
            case _:
                self._act_on(decision, todo)

    def _shut(self) -> None:
        self.receiver.buffer.expire()
        self._consuming.clear()

    def flush_log(self) -> None:
        """Write pending log lines, and settle repeated messages; call it without the lock."""
        while self._lines:
            try:
                line = self._lines.pop(0)
            except IndexError:  # another thread was quicker
                break
            token = context_name.set(self.settings.context_name if line.of_delivery else None)
            try:
                _log.log(_LOG_LEVELS[line.level], "%s: %s", self.settings.name, line.text)
            finally:
                context_name.reset(token)
        if self.receiver.repeated.waiting:
            self._settle_again()

    # -- number of messages of a unit that were passed to handlers: more than one in batches ----------------

    def join_unit(self, unit: int) -> None:
        """Count one more message of a batch; called under the lock."""
        self._unit_sizes[unit] = self._unit_sizes.get(unit, 0) + 1

    def not_delivered(self, unit: int, seen: int) -> None:
        """Undo the count of a delivery whose handler was not called, because the connection was lost.

        The rollback of its unit isn't counted either.

        Args:
            unit: Number of the unit of work to which the delivery belongs.
            seen: Number of earlier deliveries of the message.
        """
        with self.lock:
            self.counters.undeliver(seen)
            self._unit_sizes[unit] = self._unit_sizes.get(unit, 1) - 1

    def leave_unit(self, unit: int) -> int:
        """Forget a finished unit of work; return for how many of its messages a handler was called.

        Called under the lock.
        """
        self.sending.discard(unit)
        return self._unit_sizes.pop(unit, 1)


def _refusal(unit: int, error: Exception) -> UnitFailed | UnitLost | UnitInDoubt:
    """Return the event for a unit of work whose commit raised an error, and log an unexpected error.

    `UnitInDoubt`: the unit may have been committed. `UnitLost`, `UnitFailed`: the unit had no effect.
    """
    match error:
        case ConnectionLostError():
            return UnitLost(unit=unit)
        case InDoubtError():
            _log.warning("%s", error)
            return UnitInDoubt(unit=unit)
        case JmsError():
            pass
        case _:
            _log.error("Settling a message failed", exc_info=error)
    return UnitFailed(unit=unit, failure=Failure.of(error))


class Settler:
    """Settles messages, and reports the outcomes to the delivery machine.

    Args:
        driver: The driver whose messages are settled.
    """

    def __init__(self, driver: Driver) -> None:
        settings = driver.settings
        self._driver = driver
        self._counters = driver.counters
        self._confirm = settings.confirm_acknowledgements
        self._batches = settings.delivery.batch_size > 1
        self._attempt_log = driver.attempt_log
        self._delayed_messages = delayed_messages_of(settings)
        self._origin = ConsumedFrom(
            destination=settings.delivery.destination,
            subscription_name=settings.subscription.durable_name,
            context_name=settings.context_name,
            client_id=settings.client_id,
        )

    def attempt(self, buffer: ReceiveBuffer, decision: Settling) -> Exception | None:
        """Carry out a decision at the broker without telling the machine; return the error, if any.

        Guarantee: see `UnitOfWork`. A commit that only acknowledges doesn't wait for the broker, unless the
        listener confirms each settlement. After a crash, messages with unconfirmed acknowledgements are
        redelivered, and nothing else is repeated.
        """
        try:
            if self._batches:  # an unsettled message may be in front of them
                self._driver.receiver.repeated.settle()
            if isinstance(decision, CommitUnit):
                # If the message counted as handled already, messages sent with a failed commit would be lost.
                sends = decision.unit in self._driver.sending or self._driver.settings.copies
                stores = self._attempt_log is not None and self._attempt_log.keeps_ids
                if stores and not sends:
                    self._store_ids(buffer, decision)
                self._commit(buffer, decision)
                if stores and sends:
                    self._note_ids(buffer, decision)
            else:
                self._take_out(buffer, decision)
            if self._attempt_log is not None:
                self._attempt_log.flush_much()
        except Exception as error:  # noqa: BLE001 - a worker's edge: the message must not slip out of hand
            return error
        return None

    def conclude(self, buffer: ReceiveBuffer, decision: Settling, error: Exception | None) -> list[Work]:
        """Report the outcome of `attempt` to the machine; return the next work.

        Args:
            buffer: The receive buffer of the settled messages.
            decision: The decision that `attempt` carried out.
            error: Result of `attempt`; `None`: the messages are settled.
        """
        driver, handled = self._driver, isinstance(decision, CommitUnit)
        numbers = decision.acknowledge if isinstance(decision, CommitUnit) else (decision.delivery,)
        settled = decision.__class__ not in _COME_BACK
        outcome = UnitCommitted(unit=decision.unit) if error is None else _refusal(decision.unit, error)
        with driver.lock:
            self._count(decision, outcome, len(numbers))
            held = tuple(filter(buffer.held.__contains__, numbers)) if error is None else ()
            if self._attempt_log is not None and settled:
                self._attempt_log.settled(self._names(buffer, held))
            for number in held:
                driver.receiver.let_go(buffer, number, settled=settled, handled=handled)
            todo = driver.handle((outcome,))
        if isinstance(outcome, UnitLost | UnitInDoubt):
            failure = Failure(class_names=("ConnectionLostError",), message="the connection was lost")
            driver.report(buffer.link, ConnectionLost(failure=failure))
        driver.flush_log()
        return todo

    def unit_to_join(self, delivery: Delivery) -> UnitOfWork:
        """Return the broker's transaction for a delivery's unit of work; begin it if necessary.

        Raises:
            ConfigurationError: The unit is being committed, or is over.
            ConnectionLostError: The connection is lost.
        """
        number = delivery.unit
        with self._driver.lock:
            if not self._driver.machine.is_open(number):
                raise ConfigurationError(
                    "this delivery has ended; send messages that belong to it before that"
                )
            self._driver.sending.add(number)
            return self.unit_of(delivery.buffer, number, delivery.received)

    @property
    def has_limbo(self) -> bool:
        """Whether messages can be put in limbo."""
        return self._delayed_messages is not None

    def send_later(self, delivery: Delivery, outgoing: Outgoing) -> None:
        """Send a delayed message by way of limbo.

        In a transacted activation, the message is put in limbo when the unit of its delivery is committed;
        otherwise at once.

        Raises:
            ConfigurationError: The unit is being committed, or is over.
            ConnectionLostError: The connection is lost.
            TransientStoreError: The store can't be used, in an activation that isn't transacted. In a
                transacted activation this error is raised at the commit.
        """
        delayed_messages, buffer = self._delayed_messages, delivery.buffer
        if delayed_messages is None:
            raise AssertionError("without limbo nothing is left to it")
        if not self._driver.settings.transacted:
            delayed_messages.put([delayed_messages.entry_of(outgoing)])
            return
        entry = delayed_messages.entry_of(
            outgoing,
            (delivery.message, delivery.received_from),
            delivery.sent_later,
            again=self._was_here(buffer, delivery.message),
        )
        delivery.sent_later += 1
        unit = self.unit_to_join(delivery)
        if not isinstance(unit, ParkingUnit):
            unit = ParkingUnit(
                unit, delayed_messages, functools.partial(self._put_all, buffer, delayed_messages)
            )
            with self._driver.lock:
                self._driver.units[delivery.unit] = unit
        unit.park(entry)

    def _put_all(
        self, buffer: ReceiveBuffer, delayed_messages: DelayedMessages, entries: Sequence[LimboEntry]
    ) -> list[int]:
        """Put messages in limbo; while the store is unavailable, this waits and so delays the settlement."""
        attempt_log, machine = self._attempt_log, self._driver.machine
        if attempt_log is None:
            return delayed_messages.put(entries)
        return attempt_log.insist(
            lambda: delayed_messages.put(entries), lambda: buffer.open and not machine.stopping
        )

    @staticmethod
    def _was_here(buffer: ReceiveBuffer, message: JmsMessage) -> bool:
        """Return whether a message may have been delivered before."""
        return message.redelivered or buffer.link.connection.capabilities.stable_message_id

    def unit_of(self, buffer: ReceiveBuffer, number: int, received: Received | None) -> UnitOfWork:
        """Return the broker's transaction for a unit of work; begin it if necessary.

        Args:
            buffer: The receive buffer of the unit's messages.
            number: The machine's number of the unit.
            received: The first message of the unit; `None`: the unit settles no message.

        Raises:
            ConnectionLostError: The connection is lost.
        """
        units = self._driver.units
        unit = units.get(number)
        if unit is None:
            if not buffer.open:
                raise ConnectionLostError("the connection was lost: the message will be redelivered")
            unit = units[number] = buffer.link.connection.unit() if received is None else received.unit()
        return unit

    def _store_ids(self, buffer: ReceiveBuffer, decision: CommitUnit) -> None:
        """Store that messages are handled; while the store is unavailable, this waits."""
        attempt_log, machine = self._attempt_log, self._driver.machine
        if attempt_log is None:
            return
        names = [
            attempt_log.handled_name(message, buffer.origin(number))
            for number in decision.acknowledge
            if (message := buffer.held[number][1]) is not None and message.message_id is not None
        ]
        last = max(decision.acknowledge, default=0)
        attempt_log.handled(
            names,
            lambda: buffer.open and not machine.stopping,
            # The attempts at the next batch, in the same write.
            (lambda: self.names_ahead(buffer, last)) if self._batches else None,
        )

    def _note_ids(self, buffer: ReceiveBuffer, decision: CommitUnit) -> None:
        """Store that acknowledged messages are handled; if that fails, log a warning."""
        try:
            self._store_ids(buffer, decision)
        except TransientStoreError as error:
            _log.warning(
                "Ids of settled messages could not be stored; repetitions of these may be handled again: %s",
                error,
            )

    def _names(self, buffer: ReceiveBuffer, numbers: Iterable[int]) -> Iterator[str]:
        """Yield the names of messages in the store; messages without an id have none."""
        if self._attempt_log is None:
            return
        for number in numbers:
            message = buffer.held[number][1]
            if message is not None and message.message_id is not None:
                yield self._attempt_log.name(message.message_id, buffer.origin(number))

    def names_ahead(self, buffer: ReceiveBuffer, number: int) -> list[str]:
        """Return the names of messages that wait behind message `number` and were not delivered before."""
        attempt_log, driver = self._attempt_log, self._driver
        settings = driver.settings
        if attempt_log is None or not buffer.open:  # they have returned to the broker
            return []
        if settings.in_progress is not None:  # they are copied before they are handed over
            return []
        if settings.in_doubt is not InDoubtEvents.REPROCESS:  # after a crash they would be set aside too
            return []
        # All messages of a batch have an attempt before its commit anyway.
        most = max(AHEAD, settings.delivery.batch_size)
        with driver.lock:
            waiting = [held[0] for each, held in buffer.held.items() if each > number][:most]
            # A copy: the reader appends without the lock, which ends an iteration with an error.
            waiting += tuple(buffer.arrivals)[: most - len(waiting)]
        names = []
        for received in waiting:
            message = driver.receiver.reader.plain(received)
            if message is not None and message.message_id is not None:
                names.append(attempt_log.name(message.message_id, received.consumer.subscription.destination))
        return names

    def _commit(self, buffer: ReceiveBuffer, decision: CommitUnit) -> None:
        unit = self._driver.units.pop(decision.unit, None)
        held = buffer.held
        copies = self._driver.settings.copies
        # Messages redelivered after a crash are settled with confirmation before the next is delivered:
        # otherwise a message that repeatedly kills its process would use up the attempts of those before it.
        attempt_log = self._attempt_log
        confirm = self._confirm or (
            attempt_log is not None
            and attempt_log.were_attempted_before(self._names(buffer, decision.acknowledge))
        )
        if unit is None and not confirm and not copies:
            for number in decision.acknowledge:
                received, _ = held[number]
                received.consumer.acknowledge((received,))
            return
        if unit is None:
            unit = held[decision.acknowledge[0]][0].unit()
        with rolled_back(unit):
            for number in decision.acknowledge:
                received, message = held[number]
                if not self._batches:  # those of a batch are in already
                    unit.acknowledge(received)
                if message is not None:
                    for each in copies:
                        self._send_letter(unit.send, each, buffer, number, message, UNSEEN, redirect=True)
        unit.commit()

    def _take_out(self, buffer: ReceiveBuffer, decision: TakeOut) -> None:
        if not buffer.open:
            raise ConnectionLostError("the connection was lost: the message will be redelivered")
        received, message = buffer.held[decision.delivery]
        if message is None and not isinstance(decision, DeleteMessage):
            raise PermanentBrokerError("no part of the message can be read, so no copy can be sent")
        to_limbo = isinstance(decision, Park) or (isinstance(decision, MoveMessage) and decision.to_limbo)
        if to_limbo and self._delayed_messages is not None and message is not None:
            self._put_in_limbo(buffer, decision, received, message, self._delayed_messages)  # type: ignore[arg-type]  # one of these
            return
        ways = range(decision.less, WAYS) if isinstance(decision, MoveMessage) else range(1)
        send = functools.partial(self._send, buffer, decision, message)
        refusal = commit_with_fallback(received, ways, send)
        if refusal is not None:
            name = None if message is None else message.message_id
            _log.warning(
                "Message %s was moved as a shortened copy, because the complete one could not be sent: %s",
                name,
                refusal,
            )

    def _put_in_limbo(
        self,
        buffer: ReceiveBuffer,
        decision: Park | MoveMessage,
        received: Received,
        message: JmsMessage,
        delayed_messages: DelayedMessages,
    ) -> None:
        """Put a message in limbo, and then acknowledge it."""
        connection, origin = buffer.link.connection, buffer.origin(decision.delivery)
        again = self._was_here(buffer, message)
        match decision:
            case Park(pause=pause, seen=seen):
                home = self._home(buffer, decision.delivery, message)
                numbers = delayed_messages.park(message, origin, home, seen=seen, pause=pause, again=again)
            case MoveMessage(targets=(), state=state):
                known, home = state.failure, self._home(buffer, decision.delivery, message)
                failure = None if known is None else without_secrets(known, connection.secrets)
                numbers = delayed_messages.keep(message, origin, home, failure=failure, again=again)
            case MoveMessage(targets=targets, state=state):
                made: list[Outgoing] = []
                for target in targets:
                    self._send_letter(
                        made.append, target, buffer, decision.delivery, message, state, decision.redirect
                    )
                copies = [(each.destination, each.message) for each in made]
                numbers = delayed_messages.move(message, origin, copies, again=again)
        with delayed_messages.unless_refused(numbers):
            unit = received.unit()
            with rolled_back(unit):
                unit.acknowledge(received)
            unit.commit()

    def _send(
        self,
        buffer: ReceiveBuffer,
        decision: TakeOut,
        message: JmsMessage | None,
        unit: UnitOfWork,
        first: int,
    ) -> None:
        if message is None:  # only a deletion needs none
            return
        match decision:
            case DeleteMessage():
                pass
            case Stage():
                in_progress = self._driver.settings.in_progress
                if in_progress is None:
                    raise AssertionError("nothing is staged without an in-progress queue")
                unit.send(in_progress.outgoing(message, buffer.origin(decision.delivery)))
            case Park(pause=pause, seen=seen):
                target = self._home(buffer, decision.delivery, message)
                copy = parked(message, buffer.origin(decision.delivery), target, seen)
                unit.send(Outgoing(destination=target, message=copy, delay=pause))
            case MoveMessage(state=state, redirect=redirect):
                for target in decision.targets:
                    self._send_letter(
                        unit.send, target, buffer, decision.delivery, message, state, redirect, first
                    )
            case _:
                assert_never(decision)

    def _home(self, buffer: ReceiveBuffer, number: int, message: JmsMessage) -> Destination:
        """Return the destination to which a message returns when it is due or revived.

        Raises:
            ConfigurationError: The source is a wildcard for several destinations, and the message doesn't say
                from which of them it came.
        """
        if (returns := self._driver.settings.returns) is not None:
            return returns.destination
        origin = buffer.origin(number)
        home = buffer.link.connection.broker.names.home(message.destination, origin)
        if home is None:
            raise ConfigurationError(
                f"message {message.message_id} can't be sent back: {origin} stands for several destinations, "
                f"and the message doesn't say which of them it came from ({message.destination})"
            )
        return home

    def _send_letter(  # noqa: PLR0917 - private, and read in this order
        self,
        send: Callable[[Outgoing], object],
        target: Destination,
        buffer: ReceiveBuffer,
        number: int,
        message: JmsMessage,
        state: MessageState,
        redirect: bool,
        first: int = 0,
    ) -> None:
        """Send a copy of a message to a target, with as many of its parts as the broker takes.

        The versions of the copy get smaller with their number. Those below number `first` are skipped,
        because the broker refused them at an earlier commit.

        Raises:
            ConfigurationError: The copy would return to the source of the message.
        """
        connection, origin = buffer.link.connection, buffer.origin(number)
        check_target(connection.broker, target, origin)
        refusal = send_letter(
            lambda copy: send(Outgoing(destination=target, message=copy)),
            message,
            replace(self._origin, destination=origin),
            state,
            first=first,
            max_property_characters=connection.capabilities.max_property_characters,
            redirect=redirect,
            secrets=connection.secrets,
        )
        if refusal is not None:
            _log.warning(
                "Message %s goes to %s as a shortened copy, because the complete one could not be sent: %s",
                message.message_id,
                target,
                refusal,
            )

    def _count(  # noqa: C901 - the table of outcomes
        self, decision: Settling, outcome: Event, messages: int
    ) -> None:
        counters = self._counters
        match outcome, decision:
            case UnitCommitted(), CommitUnit(unit=unit):
                counters.committed += messages
                self._driver.leave_unit(unit)
            case UnitCommitted(), MoveMessage():
                counters.bypass(moved=1, dead_lettered=int(decision.state.failure is not None))
            case UnitCommitted(), DeleteMessage(repeated=True):
                counters.repeated += 1
                self._driver.receiver.admit_more()
            case UnitCommitted(), DeleteMessage():
                counters.bypass(deleted=1)
            case UnitCommitted(), Park():
                counters.parked += 1
                self._driver.receiver.admit_more()
            case UnitCommitted(), Stage():
                pass
            case UnitLost(), CommitUnit(unit=unit):
                counters.rolled_back += self._driver.leave_unit(unit)
            case UnitFailed(), CommitUnit(unit=unit):
                counters.failed += 1
                self._driver.leave_unit(unit)
            case UnitFailed(), _:
                counters.failed += 1
                self._driver.receiver.admit_more()  # it may stay where it is
            case UnitInDoubt(), _:
                counters.in_doubt += messages
                self._driver.leave_unit(decision.unit)
