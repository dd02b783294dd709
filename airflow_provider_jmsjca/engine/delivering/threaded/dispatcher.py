"""The driver with threads: any thread feeds events, and a pool carries out decisions."""

from __future__ import annotations

import math
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias

from airflow_provider_jmsjca.core.delivery.concurrency import ConcurrencyLimit
from airflow_provider_jmsjca.core.delivery.decisions import (
    CommitUnit,
    Decision,
    Deliver,
    DeliverEndOfBatch,
    Leave,
    RecordAttempt,
    RollBackUnit,
)
from airflow_provider_jmsjca.core.delivery.events import (
    ConnectionOpened,
    Event,
    HandlerReturned,
    ReconnectAsked,
    Start,
    StopAsked,
    SuspendAsked,
    Tick,
    UnitCommitted,
)
from airflow_provider_jmsjca.core.delivery.machine import DeliveryMachine, allows_fast_path
from airflow_provider_jmsjca.core.delivery.outage import ActivationState, RefusedDestinations
from airflow_provider_jmsjca.core.delivery.states import FastPathUnit
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.redelivery import RedeliveryTracker
from airflow_provider_jmsjca.engine.connecting.connector import delete_durable
from airflow_provider_jmsjca.engine.delivering.attempt_log import AttemptLog, attempt_log_of, undo_attempts_in
from airflow_provider_jmsjca.engine.delivering.consumers import (
    Consumers,
    ConsumingLink,
    InDoubt,
    watches,
)
from airflow_provider_jmsjca.engine.delivering.delivery import Delivery
from airflow_provider_jmsjca.engine.delivering.driver import AboutMessages, Driver
from airflow_provider_jmsjca.engine.delivering.receiver import (
    ConsumerConnection,
    ReceiveBuffer,
    Receiver,
    Work,
)
from airflow_provider_jmsjca.engine.delivering.settings import ListenerSettings, bounded
from airflow_provider_jmsjca.engine.delivering.threaded.workers import Handler, HandlerCaller, Workers
from airflow_provider_jmsjca.engine.watching.backlog import BacklogWatch
from airflow_provider_jmsjca.errors import (
    JmsError,
    PermanentBrokerError,
)
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.transports.base import ConnectFunction, Connection, Received, UnitOfWork

_log = safe_logger("airflow_provider_jmsjca.listener")
_FAR = float("inf")

Begun: TypeAlias = tuple[FastPathUnit, Received, JmsMessage]
"""A unit of the fast path, the message from the transport, and the message as the handler gets it."""


class ThreadLink(ConsumingLink):
    """One attempt to connect, and the resulting connection.

    Blocking calls run in order in a thread of the link. If a link is closed while it is still connecting,
    the attempt continues in the background, and its connection is closed once it opens.

    Args:
        settings: Contains the subscriptions.
        connect: Opens one connection, or raises `JmsError`.
        driver: Receives the events of the link.
        receivers: Opens the consumers.
        attempt_log: The records in the store; `None`: nothing is stored.
    """

    _driver: Dispatcher

    def __init__(
        self,
        settings: ListenerSettings,
        connect: ConnectFunction,
        driver: Dispatcher,
        receivers: Consumers,
        attempt_log: AttemptLog | None,
    ) -> None:
        super().__init__(settings, driver, receivers)
        self._connect = connect
        self._attempt_log = attempt_log
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.closed = threading.Event()
        self._watches: list[BacklogWatch] = []
        self._thread = threading.Thread(target=self._run, name=f"jms-link {settings.name}", daemon=True)

    @property
    def server_type(self) -> str:
        """Product name of the broker; empty without a connection."""
        return "" if self._connection is None else self._connection.broker.product

    @property
    def address(self) -> str:
        """`host:port` of the broker; empty without a connection."""
        return "" if self._connection is None else self._connection.broker.address

    def start(self) -> None:
        """Begin to connect; the driver later gets `ConnectionOpened` or `ConnectFailed`."""
        self._thread.start()

    def consume(self, buffer: ReceiveBuffer) -> None:
        """Begin to open the consumers; a call of `Driver.opened` or the event `ConnectFailed` follows."""
        self._work.put(lambda: self._consume(buffer))

    def stop_consuming(self) -> None:
        """Close the consumers: unsettled messages return to the broker."""
        self._work.put(self._undo_attempts)
        self._work.put(self._stop_consuming)

    def close(self, *, delete_durable: bool = False) -> None:
        """Close the connection, or give up connecting; `closed` is set when that is done."""
        self._unwanted = True
        self._stop_watching()
        self._work.put(self._undo_attempts)
        if delete_durable:
            self._work.put(self._delete_durable)
        self._work.put(None)
        if self._connection is None:
            self.closed.set()

    def _run(self) -> None:
        try:
            self._open()
            while (work := self._next_work()) is not None:
                work()
        except Exception:  # noqa: BLE001 - the outermost edge of this thread: nobody else would see it
            _log.exception("Internal error in the connection of %s; please report it", self._settings.name)
            self._failed(
                PermanentBrokerError("internal error in the connection; see the traceback in the log")
            )
        finally:
            if self._connection is not None:
                self._connection.close()
            self.closed.set()

    def _undo_attempts(self) -> None:
        """Undo attempts that were not made, before their messages return to the broker."""
        if self._attempt_log is not None:
            self._attempt_log.undo()

    def _next_work(self) -> Callable[[], None] | None:
        while True:
            try:
                return self._work.get(timeout=self._receivers.next_try)
            except queue.Empty:
                self._receivers.try_again()

    def _open(self) -> None:
        try:
            if self._attempt_log is not None:
                self._attempt_log.refuse_if_stopped()
            connection = self._connect()
        except JmsError as error:
            if not self._unwanted:
                self._failed(error)
            return
        self._connection = connection
        if not self._unwanted:
            self._driver.report(self, ConnectionOpened())
            connection.on_lost(self._lost)  # after that: a connection is lost only once it is up

    def _consume(self, buffer: ReceiveBuffer) -> None:
        if self._unwanted:
            return
        append, call_soon = buffer.arrivals.append, self.connection.call_soon
        wake = partial(self._driver.workers.wake, weakref.ref(buffer))

        def on_received(received: Received) -> None:
            append(received)
            if not buffer.noticed:
                buffer.noticed = True
                call_soon(wake)  # a thread woken for the first of many messages would wait for the others

        try:
            self._check(self.connection)
            self._receivers.open(self.connection, on_received)
        except JmsError as error:
            self._failed(error)
            return
        _log.info("%s is consuming from %s", self._settings.name, self.connection.broker)
        self._driver.opened(buffer)
        self._watch_backlog(self.connection)

    def _watch_backlog(self, connection: Connection) -> None:
        if self._watches or not connection.capabilities.backlog:
            return
        self._watches = watches(self._settings, self._connect, self._driver, connection)
        for watch in self._watches:
            watch.start()
        if self._unwanted:  # closed while the watches started
            self._stop_watching()

    @property
    def is_checking_backlog(self) -> bool:
        """Whether a check for messages that stay at the broker is running."""
        return any(watch.is_checking for watch in self._watches)

    def _stop_watching(self) -> None:
        for watch in self._watches:
            watch.stop()

    def _check(self, connection: Connection) -> None:
        capabilities, broker = connection.capabilities, connection.broker
        subscription = self._settings.subscription
        if subscription.durable_name is not None:
            capabilities.require(broker, "durable_subscription", purpose="the durable subscription")
        if subscription.selector:
            capabilities.require(broker, "selector", purpose="the message selector")

    def _delete_durable(self) -> None:
        name, destination = self._settings.subscription.durable_name, self._settings.subscription.destination
        if name is None or self._connection is None:
            return
        try:
            self._receivers.close()
            try:
                self._connection.delete_durable(name, destination)
            except PermanentBrokerError as refused:
                _log.debug(
                    "%s: deleting the durable subscription was refused; trying again over a new "
                    "connection: %s",
                    self._settings.name,
                    refused,
                )
                self._connection.close()
                delete_durable(self._connect, name, destination)
        except JmsError as error:
            _log.warning(
                "The durable subscription of %s could not be deleted and still collects messages: %s",
                self._settings.name,
                error,
            )


class Rollbacks:
    """Units of work to roll back, one after the other, before any thread continues with the same messages.

    Args:
        name: The listener's name, for the log.

    Attributes:
        waiting: Units that aren't rolled back yet.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self.waiting: deque[UnitOfWork] = deque()

    def finish(self) -> None:
        """Roll back all waiting units, or wait until another thread has done so."""
        with self._lock:
            while self.waiting:
                try:
                    self.waiting[0].rollback()
                except JmsError as error:
                    # A connection that is lost has rolled back by itself.
                    _log.debug("%s: a rollback: %s", self._name, error)
                finally:
                    # Not earlier: once the queue is empty, other threads continue with the same messages.
                    self.waiting.popleft()


class Dispatcher(Driver):
    """Drives one run of a listener with threads, from its start to its stop.

    Decisions about the connection go to its `ThreadLink`, all others to the thread pool. No method blocks, so
    any thread may feed events, even the connection's reader. A single in-flight message that needs no
    decision takes the fast path.

    Args:
        settings: Settings of the listener.
        connect: Opens one connection, or raises `JmsError`.
        handler: Called with each message.
        tracker: Delivery counts, last exceptions and rollback data of messages, also of earlier runs.
        clock: Returns seconds, monotonic.
        chance: Returns a random number, 0 up to but not including 1.
        consuming: Set while the broker has confirmed the subscriptions.
        gives_up: Called when the broker refuses permanently; returns whether to stop.
        on_stop: Called when a handler requests a stop, not under the lock.
        stop_within: Time that running handlers get at such a stop.
        limit: Settle at most this many messages; `None`: no limit.
        room: Concurrency limit shared with other listeners, instead of `limit`.
        calls_before: Calls of the handler in earlier runs.

    Attributes:
        workers: The threads.
        rollbacks: Pending rollbacks; they finish before any other work on the same messages.
        stopped: Set when the activation has stopped.
        alarm: Time on the clock at which the machine gets the next `Tick`.
    """

    link: ThreadLink

    def __init__(
        self,
        settings: ListenerSettings,
        connect: ConnectFunction,
        handler: Handler,
        tracker: RedeliveryTracker,
        *,
        clock: Callable[[], float],
        chance: Callable[[], float],
        consuming: threading.Event,
        gives_up: Callable[[], bool],
        on_stop: Callable[[StopAsked], object],
        stop_within: timedelta,
        limit: int | None = None,
        room: ConcurrencyLimit | None = None,
        calls_before: int = 0,
    ) -> None:
        if limit is not None:
            settings = bounded(settings, limit)
        delivery = settings.delivery
        if room is None and (delivery.further or delivery.in_progress or settings.returns is not None):
            # The machine chooses the next message, so it must also enforce the limit.
            room = ConcurrencyLimit(delivery.concurrency, limit)
        self._alarm_set = threading.Event()
        self._woken = self._ended = self._delete_durable = False
        share = None if room is None else room.join(self.wake)
        attempt_log = attempt_log_of(settings, keeps_ids=settings.drop_duplicates)
        super().__init__(
            settings,
            DeliveryMachine(
                delivery, tracker, chance, share, undo_attempts_in(attempt_log, delivery.sources)
            ),
            attempt_log=attempt_log,
            clock=clock,
            lock=threading.Lock(),
            consuming=consuming,
            gives_up=gives_up,
            calls_before=calls_before,
        )
        self._connect = connect
        self._receives = settings
        self._batches = delivery.batch_size > 1
        self._refusals = RefusedDestinations()
        self._in_doubt = InDoubt(None if attempt_log is None else attempt_log.left_in_doubt)
        self.stopped = threading.Event()
        self.alarm = _FAR
        self.rollbacks = Rollbacks(settings.name)
        self.link = self._new_link()
        self.receiver = Receiver(
            settings,
            self.machine,
            self.counters,
            self.arrived,
            ReceiveBuffer.shut(self.link),
            # A machine that chooses among messages or enforces the limit itself receives every message at
            # once. So does one with batches: the thread of a batch then finds its next message without
            # waiting for another thread. Any other receives a message when a thread is free for it.
            takes_all=share is not None or self._batches,
            limit=None if share is not None else limit,
            wanted=self._wants_message,
            post=lambda work: self.post([work]),
        )
        self._repeated = self.receiver.repeated
        self._caller = HandlerCaller(self, handler, on_stop=on_stop, stop_within=stop_within)
        # Any other decision settles.
        self._work: dict[type[Decision], Callable[[ReceiveBuffer, Any], list[Work]]] = {
            Deliver: self._caller.deliver,
            DeliverEndOfBatch: self._caller.deliver_end_of_batch,
            RecordAttempt: self._caller.record_attempt,
            Leave: self._leave,
        }
        take = FastPath(self, self._caller).take if can_use_fast_path(settings) else self._take
        self.workers = Workers(settings, take, self._do, self._reconnect_after_fault)

    def _new_link(self) -> ThreadLink:
        receivers = Consumers(self._receives, self._refusals, self._in_doubt)
        return ThreadLink(self._receives, self._connect, self, receivers, self.attempt_log)

    @property
    def refused(self) -> tuple[str, ...]:
        """Reasons why some or all destinations are not consumed; see `Statistics.refused`."""
        if self.refusal is not None or self.outage:
            return (str(self.refusal or self.outage),)
        if self.attempt_log is not None and self.attempt_log.trouble:
            return (self.attempt_log.trouble,)
        sources = self.settings.delivery.sources
        return tuple(f"{sources[number]}: {reason}" for number, reason in self._refusals.reasons.items())

    def start(self, *, suspended: bool = False) -> None:
        """Start the threads, and begin to consume.

        Args:
            suspended: Connect only; consume after `ResumeAsked`.
        """
        self.counters.began = self.clock()
        self.workers.start()
        threading.Thread(target=self._keep_time, name=f"jms-clock {self.settings.name}", daemon=True).start()
        self.feed(Start(), *([SuspendAsked()] if suspended else []))

    # -- events in ----------------------------------------------------------------------------------------

    def handle(self, events: Iterable[Event]) -> list[Work]:
        """Pass events to the machine, and return the resulting work; for the lock see `Driver.handle`."""
        now = self.clock()
        self.last_activity = now
        todo: list[Work] = []
        handle = self.machine.handle
        receiver = self.receiver
        arrived = receiver.take_all() if receiver.takes_all and receiver.buffer.arrivals else ()
        events = [*arrived, *events]
        for event in events:  # the store's answers are appended
            for decision in handle(event, now):
                kind = decision.__class__
                if kind is Deliver:
                    self.counters.deliver(decision.seen, now)  # type: ignore[union-attr]  # a Deliver
                    if self._batches:
                        self.join_unit(decision.unit)  # type: ignore[union-attr]
                    todo.append((receiver.buffer, decision))
                elif kind is CommitUnit:
                    todo.append((receiver.buffer, decision))
                elif kind is RecordAttempt and (answer := self._counted_ahead(decision)) is not None:  # type: ignore[arg-type]
                    events.append(answer)
                else:
                    self.carry_out(decision, todo)
        if receiver.held_up:
            receiver.go_on()
        if (deadline := self.machine.deadline) is not None and deadline < self.alarm:
            self.arm_by(deadline)
        return todo

    def _wants_message(self) -> bool:
        """Return whether to take another message even if the memory limit is reached.

        The result is `True` while a unit of work could take a message at once and no message is pending. With
        an in-progress queue, the result is always `True`.
        """
        # An in-progress copy is queued behind earlier messages that may not be handled before it. Delivery
        # would stall if these were not taken in. The memory limit applies only to a batch of copies.
        return self.settings.delivery.in_progress or self.machine.wants_message

    def _counted_ahead(self, decision: RecordAttempt) -> Event | None:
        """Return the store's answer as an event if the attempt was stored ahead; otherwise `None`."""
        if self.attempt_log is None or decision.message_id is None:
            return None
        name = self.attempt_log.name(decision.message_id, self.receiver.buffer.origin(decision.delivery))
        found = self.attempt_log.counted_ahead(name)
        return None if found is None else self._caller.answer(decision.delivery, found)

    def post(self, todo: list[Work]) -> None:
        """Queue work for the thread pool."""
        for work in todo:
            self.workers.post(work)

    def arrived(self, buffer: ReceiveBuffer) -> None:
        """Notify the workers of messages in the receive buffer."""
        self.workers.arrived(buffer)

    def wake(self) -> None:
        """Check soon whether the concurrency limit lets waiting messages continue; safe under any lock."""
        self._woken = True
        self._alarm_set.set()

    def idle_for(self) -> float:
        """Return for how many seconds the run has had nothing to do; 0 while busy or not connected."""
        with self.lock:
            machine = self.machine
            if machine.state is not ActivationState.UP or machine.suspended or machine.in_flight:
                return 0.0
            return self.clock() - self.last_activity if machine.idle else 0.0

    def keeps(self) -> bool:
        """Return whether messages stay unsettled; call it only while no message is in flight."""
        return bool(self.receiver.buffer.held)

    def _take(self, buffer: ReceiveBuffer) -> list[Work] | None:
        with self.lock:
            todo = self.take_one() if self.receiver.may_take(buffer) else None
        self.flush_log()
        if todo is None and self.attempt_log is not None:
            self.attempt_log.flush()
        return todo

    def take_one(self) -> list[Work]:
        """Take the first message, or all if the machine chooses among them; for the lock see `handle`."""
        if self.receiver.takes_all:
            return self.handle(())
        event = self.receiver.take()
        if event is None:  # settled before, or not for us any more: something came all the same
            self.last_activity = self.clock()
            return []
        return self.handle((event,))

    def ask_stop(self, event: StopAsked, *, delete_durable: bool) -> None:
        """Stop; call it from any thread, but not from a signal handler.

        Args:
            event: The request, for the machine.
            delete_durable: Whether the durable subscription may be deleted, if the settings say so.
        """
        self._delete_durable = delete_durable
        self.feed(event)

    def abandon_received(self) -> None:
        """Undo the delivery count of arrived messages that no worker has taken from the receive buffer.

        Another run receives these messages.
        """
        with self.lock:
            self._start_over(ReceiveBuffer.shut(self.link))

    # -- decisions out ------------------------------------------------------------------------------------

    def _act_on(self, decision: AboutMessages, todo: list[Work]) -> None:
        if isinstance(decision, RollBackUnit):
            self.counters.rolled_back += self.leave_unit(decision.unit)
            if (work := self.units.pop(decision.unit, None)) is None:
                return
            self.rollbacks.waiting.append(work)
        todo.append((self.receiver.buffer, decision))

    def _do(self, work: Work) -> list[Work]:
        if self.rollbacks.waiting:
            self.rollbacks.finish()
        buffer, decision = work
        kind = decision.__class__
        if kind is RollBackUnit:
            return []
        if (carry_out := self._work.get(kind)) is not None:
            todo = carry_out(buffer, decision)
        else:  # all other decisions settle
            error = self.settler.attempt(buffer, decision)  # type: ignore[arg-type]
            todo = self.settler.conclude(buffer, decision, error)  # type: ignore[arg-type]
        if not todo and self.attempt_log is not None and self._has_nothing_to_do(buffer):
            self.attempt_log.flush()
        return todo

    def _has_nothing_to_do(self, buffer: ReceiveBuffer) -> bool:
        with self.lock:
            return self.machine.in_flight == 0 and not buffer.arrivals

    def _leave(self, buffer: ReceiveBuffer, decision: Leave) -> list[Work]:
        """Continue with other messages after a message that stays unsettled; reconnect if necessary.

        A new connection is necessary if the consumers settle in order or receive one message at a time.
        Otherwise the unsettled message would block later ones.
        """
        todo: list[Work] = []
        link = buffer.link
        with self.lock:
            buffer.stop_counting(decision.delivery)
            receives = self._receives
            if receives.unit_consumers is not None or any(
                each.in_order or each.one_of_several for each in receives.subscriptions
            ):
                first, *further = (
                    replace(each, in_order=False, one_of_several=False) for each in receives.subscriptions
                )
                self._receives = replace(
                    receives, subscription=first, further=tuple(further), unit_consumers=None
                )
                todo = self._reconnect(link, "a message stays unsettled")
            self.receiver.admit_more()
        self.flush_log()
        return todo

    def _reconnect_after_fault(self) -> None:
        with self.lock:
            todo = self._reconnect(self.link, "internal error")
        self.flush_log()
        self.post(todo)

    def _reconnect(self, link: ConsumerConnection, reason: str) -> list[Work]:
        """Replace a connection, if it is the current one; called under the lock."""
        if link is not self.link or link.is_lost:
            return []
        link.mark_lost()  # its further reports are ignored
        return self.handle((ReconnectAsked(reason=reason),))

    def _link_is_up(self, link: ConsumerConnection) -> None:
        """Do nothing: each `ThreadLink` watches the backlog itself."""

    def _shut(self) -> None:
        super()._shut()
        if self.attempt_log is not None:
            self.attempt_log.give_back()

    def _start_over(self, buffer: ReceiveBuffer) -> None:
        self.receiver.restart_with(buffer)
        if self.attempt_log is not None:
            self.attempt_log.give_back()

    def _close_link(self, *, clean: bool) -> None:
        # Never when messages come back to the subscription. W33.
        wanted = clean and self._delete_durable and self.settings.delete_durable
        self.link.close(delete_durable=wanted and not self.link.is_lost and self.counters.active == 0)

    def _settle_again(self) -> None:
        self._repeated.settle()

    def _end(self) -> None:
        self._ended = True
        self._alarm_set.set()
        self.workers.close()

    def flush_log(self) -> None:
        """Write pending log lines, then report the end of the run; call it without the lock."""
        if self._lines or self._repeated.waiting:
            super().flush_log()
        if self._ended:
            if self.attempt_log is not None:
                # Once more for late answers of the store.
                (self.attempt_log.flush if self.stopped.is_set() else self.attempt_log.end)()
            self.stopped.set()

    # -- time ---------------------------------------------------------------------------------------------

    def arm_by(self, deadline: float) -> None:
        """Bring the next `Tick` of the machine forward to this deadline; called under the lock."""
        self.alarm = deadline
        self._alarm_set.set()

    def _keep_time(self) -> None:
        while True:
            self._alarm_set.wait(None if self.alarm == _FAR else max(0.0, self.alarm - self.clock()))
            with self.lock:
                if self._ended:
                    return
                self._alarm_set.clear()
                due = False
                # Not before: most deadlines are obsolete by then, and setting it each time costs more.
                if self.alarm <= (now := self.clock()):
                    deadline = self.machine.deadline
                    self.alarm = _FAR if deadline is None else deadline
                    due = self.alarm <= now
                if self._woken:  # only then: a wake-up that comes now would be lost
                    self._woken = False
                    due = True
            if due:
                self.feed(Tick())


def can_use_fast_path(settings: ListenerSettings) -> bool:
    """Return whether one acknowledgement settles a plain message, without a wait for the broker's answer."""
    return (
        allows_fast_path(settings.delivery)
        and not settings.confirm_acknowledgements
        and not (settings.copies or settings.drop_duplicates)
        and settings.subscribes is None
    )


class FastPath:
    """The fast path of a message, from the connection through the handler to its settlement.

    For a message that is a unit of work by itself, it does the work of `Dispatcher`, `HandlerCaller` and
    `Settler`. These take over as soon as a decision is necessary. Each message in flight has a thread of its
    own.

    Args:
        dispatcher: Source of the messages, and of the delivery machine.
        caller: Calls the handler.
    """

    def __init__(self, dispatcher: Dispatcher, caller: HandlerCaller) -> None:
        self._dispatcher = dispatcher
        self._receiver = dispatcher.receiver
        self._memory = dispatcher.receiver.memory
        self._machine = dispatcher.machine
        self._settler = dispatcher.settler
        self._engine = caller.engine
        self._call = caller.call
        self._reader = dispatcher.receiver.reader
        delivery = dispatcher.settings.delivery
        self._handling = str(delivery.handling)
        self._several = dispatcher.settings.threads > 1
        timeout = delivery.transaction_timeout
        self._timeout = math.inf if timeout is None else timeout.total_seconds()

    def take(self, buffer: ReceiveBuffer) -> list[Work] | None:
        """Handle arriving messages one after the other.

        Returns:
            Work to do before the next call; `None`: there is nothing to take.
        """
        dispatcher, lock = self._dispatcher, self._dispatcher.lock
        begun: Begun | None = None
        while True:
            if dispatcher.rollbacks.waiting:
                dispatcher.rollbacks.finish()
            with lock:
                begun, todo = self._next(buffer, begun)
            if begun is None:
                break
            if self._several and buffer.arrivals:
                dispatcher.workers.arrived(buffer)  # another thread may take more while this one is busy
            direct, received, message = begun
            delivery = Delivery(
                message, self._engine, buffer, direct.call, direct.unit, self._handling, received
            )
            began = dispatcher.clock()
            events = self._call(delivery)
            seconds = dispatcher.clock() - began
            with lock:
                counters = dispatcher.counters
                counters.active -= 1
                counters.handler_seconds += seconds
                # Otherwise there is nothing to do but to acknowledge.
                if events or direct.unit in dispatcher.units or not self._machine.returned_directly(direct):
                    todo = dispatcher.handle(events or (HandlerReturned(call=direct.call),))
                    break
            try:
                received.consumer.acknowledge((received,))
            except Exception as error:  # noqa: BLE001 - the settler tells them apart
                commit = CommitUnit(unit=direct.unit, acknowledge=(direct.delivery,))
                return self._settler.conclude(buffer, commit, error)
        if todo is not None:
            dispatcher.flush_log()
        return todo

    def _next(self, buffer: ReceiveBuffer, done: Begun | None) -> tuple[Begun | None, list[Work] | None]:
        """Record that a message is settled, and begin the unit of the next one; called under the lock.

        Args:
            buffer: The receive buffer.
            done: The unit that was acknowledged just now, and its message; `None`: none was.

        Returns:
            The next unit and its message. If it is `None`, the second value is the result of `take`.
        """
        dispatcher, receiver, machine = self._dispatcher, self._receiver, self._machine
        now = dispatcher.clock()
        if done is not None:
            direct, received, message = done
            if buffer.held.pop(direct.delivery, None) is not None:
                receiver.note_settled(buffer, received, message, None)
            dispatcher.counters.committed += 1
            dispatcher.last_activity = now
            if not machine.committed_directly(direct):
                return None, dispatcher.handle((UnitCommitted(unit=direct.unit),))
        if dispatcher.workers.posted:
            return None, []
        if not (buffer.arrivals and receiver.may_take(buffer)):
            return None, None
        received, begun = buffer.arrivals[0], None
        # While the broker is blocked, only `Receiver.take` checks whether this message ends that state.
        plain = None if receiver.blocked else self._reader.plain(received)
        if (
            plain is not None
            and plain.message_id is not None
            and not (self._memory.has_entries and receiver.comes_again(received))
        ):
            group = plain.properties.get("JMSXGroupID")
            begun = machine.begin_directly(
                next(receiver.numbers), plain.message_id, None if group is None else str(group), now
            )
        if plain is None or begun is None:
            return None, dispatcher.take_one()
        buffer.arrivals.popleft()
        buffer.held[begun.delivery] = received, plain
        dispatcher.last_activity = now
        dispatcher.counters.deliver(0, now)
        if (deadline := now + self._timeout) < dispatcher.alarm:
            dispatcher.arm_by(deadline)
        return (begun, received, plain), None
