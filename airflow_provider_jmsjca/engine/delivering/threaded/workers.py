"""The threads of a listener, and the calls of its handler in them."""

from __future__ import annotations

import contextvars
import enum
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from airflow_provider_jmsjca.core.copies.delivery_date import time_left
from airflow_provider_jmsjca.core.delivery.decisions import Deliver, DeliverEndOfBatch, RecordAttempt
from airflow_provider_jmsjca.core.delivery.events import (
    Acknowledged,
    AttemptNotRecorded,
    ConnectionLost,
    Event,
    FoundHandled,
    HandlerNotCalled,
    HandlerRaised,
    HandlerReturned,
    RollbackAsked,
    StateSet,
    StopAsked,
)
from airflow_provider_jmsjca.core.failure import Failure, loggable
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.redelivery import RedeliveryHandling
from airflow_provider_jmsjca.engine.delivering.attempt_log import AttemptLookup, recorded
from airflow_provider_jmsjca.engine.delivering.delivery import (
    ENTER_LOGGER,
    EXIT_LOGGER,
    Delivery,
    HandlerEngine,
    context_name,
)
from airflow_provider_jmsjca.engine.delivering.driver import Driver
from airflow_provider_jmsjca.engine.delivering.receiver import ReceiveBuffer, Work
from airflow_provider_jmsjca.engine.delivering.settings import ListenerSettings, refuse_unrun
from airflow_provider_jmsjca.engine.session.tracing import traced, with_current_trace
from airflow_provider_jmsjca.errors import ConnectionLostError, TransientStoreError
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.transports.base import Outgoing, check_sendable

_log = safe_logger("airflow_provider_jmsjca.listener")
_enter = safe_logger(ENTER_LOGGER)
_exit = safe_logger(EXIT_LOGGER)

Handler: TypeAlias = Callable[[Delivery], object]

_END_OF_BATCH = JmsMessage.empty()


class PostedWork(enum.Enum):
    """Marker for posted work in the threads' queue."""

    POSTED = enum.auto()


_POSTED: Final = PostedWork.POSTED


class Workers:
    """Threads that take arrived messages and do the work that the delivery machine decides on.

    Any thread does any work, except that one thread makes all handler calls of a batch, and waits for them at
    its own mailbox. Threads are added while all are busy, up to the limit. Threads that are idle for a long
    time end, down to the initial number. All threads run in the context (`contextvars`) of their creator, and
    with the listener's context name, because they log about deliveries.

    Args:
        settings: Sizes and names.
        admit: Takes a message from a receive buffer, or handles several on the fast path. Returns the next
            work; `None`: there is nothing left to take.
        perform: Does a piece of work; returns the next work.
        reconnect_after_fault: Called after an internal fault; continues over another connection.

    Attributes:
        posted: Work that no thread has begun; a thread checks it before it takes further messages.
    """

    def __init__(
        self,
        settings: ListenerSettings,
        admit: Callable[[ReceiveBuffer], list[Work] | None],
        perform: Callable[[Work], list[Work]],
        reconnect_after_fault: Callable[[], None] = lambda: None,
    ) -> None:
        self._name = settings.name
        self._maximum = settings.threads
        self._initial = min(max(settings.pool_initial, 1), self._maximum)
        idle = settings.pool_idle_timeout
        self._idle_seconds = None if idle is None else idle.total_seconds()
        self._batches = settings.delivery.batch_size > 1
        self._admit = admit
        self._perform = perform
        self._reconnect_after_fault = reconnect_after_fault
        self._context = contextvars.copy_context()
        self._context.run(context_name.set, settings.context_name)
        # Weak references: a stale receive buffer may wait here for as long as a handler runs.
        self._queue: queue.SimpleQueue[weakref.ref[ReceiveBuffer] | PostedWork | None] = queue.SimpleQueue()
        self.posted: deque[Work] = deque()
        self._mailboxes: dict[int, queue.SimpleQueue[Work | None]] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._spare = 0  # threads that neither work nor have to take what is queued; below 0: too few threads
        self._own: set[int] = set()
        self.size = 0

    def start(self) -> None:
        """Start the initial threads; at least two with batches, because each batch occupies a thread."""
        for _ in range(max(self._initial, 2 if self._batches else 1)):
            self._add()

    def arrived(self, buffer: ReceiveBuffer) -> None:
        """Notify the threads of messages in the receive buffer.

        One thread is notified at a time. It takes a message, notifies the next thread if there are more, and
        continues: with quick handlers, a thread that is already awake takes nearly every message.
        """
        if not buffer.noticed:  # otherwise a thread will look
            buffer.noticed = True
            self.wake(weakref.ref(buffer))

    def wake(self, item: weakref.ref[ReceiveBuffer] | PostedWork) -> None:
        """Queue posted work, or a receive buffer with new messages, for the next free thread.

        The caller has set the buffer's `noticed`, so that the buffer is queued only once until a thread takes
        its messages.
        """
        with self._lock:
            self._spare -= 1
            is_wanted = self._spare < 0 and not self._closed
        self._queue.put(item)
        if is_wanted and self.size < self._maximum:
            self._add()

    def post(self, work: Work) -> None:
        """Queue a piece of work."""
        if self._mailboxes and self._forward(work):
            return
        self.posted.append(work)
        self.wake(_POSTED)

    def close(self) -> None:
        """End the threads after their current work."""
        with self._lock:
            self._closed = True
        self._queue.put(None)
        for mailbox in list(self._mailboxes.values()):
            mailbox.put(None)

    def _add(self) -> None:
        with self._lock:
            if self.size >= self._maximum:
                return
            self.size += 1
            self._spare += 1
            number = self.size
        context = self._context.copy()
        thread = threading.Thread(
            target=context.run, args=(self._run,), name=f"jms-listener {self._name} {number}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            with self._lock:
                self.size -= 1
                self._spare -= 1
                if self.size == 0:
                    raise
            _log.warning(
                "%s: can't start another thread; messages wait for the threads that run: %s",
                self._name,
                error,
            )

    @property
    def are_here(self) -> bool:
        """Whether the caller is one of the threads."""
        return threading.get_ident() in self._own

    def _run(self) -> None:
        own = threading.get_ident()
        self._own.add(own)
        try:
            goes_on = True
            while goes_on:
                try:
                    goes_on = self._serve_next()
                except Exception:  # noqa: BLE001 - a thread that ended would abandon messages in flight
                    _log.exception(
                        "%s: internal error; continuing over a new connection. Please report the traceback",
                        self._name,
                    )
                    self._reconnect_after_fault()
        finally:
            with self._lock:
                self._uncount(own)

    def _uncount(self, own: int) -> None:
        if own in self._own:
            self._own.discard(own)
            self.size -= 1
            self._spare -= 1

    def _may_end(self) -> bool:
        """Return whether a thread that was idle for a long time may end; if so, stop counting it."""
        with self._lock:
            if self.size <= self._initial or self._spare <= 0:
                return False
            self._uncount(threading.get_ident())
            return True

    def _serve_next(self) -> bool:
        """Do the next work; return whether the thread continues."""
        try:
            item = self._queue.get(timeout=self._idle_seconds)
        except queue.Empty:
            return not self._may_end()
        if item is None:
            self._queue.put(None)  # for the next one
            return False
        if self._spare < 0 and self.size < self._maximum:  # the process had no thread left before
            self._add()
        try:
            buffer = item() if isinstance(item, weakref.ref) else None
            if buffer is None:
                self._do_posted()
                return True
            buffer.noticed = False  # before it looks: later messages are noticed again
            while (todo := self._admit(buffer)) is not None:
                if self._maximum > 1 and buffer.arrivals:
                    self.arrived(buffer)  # another thread may take more while this one is busy
                self._work_off(todo)
                self._do_posted()
        finally:
            with self._lock:
                self._spare += 1
        return True

    def _do_posted(self) -> None:
        """Do all posted work; a thread that is woken for it later finds nothing to do."""
        while self.posted:
            try:
                work = self.posted.popleft()
            except IndexError:  # another thread was quicker
                return
            self._work_off([work])

    def _work_off(self, todo: list[Work]) -> None:
        while todo:
            if self._mailboxes:
                todo = [work for work in todo if not self._forward(work)]
                if not todo:
                    return
            for later in todo[1:]:
                self.post(later)
            work = todo[0]
            if self._batches and isinstance(work[1], Deliver):
                todo = self._serve_batch(work, work[1].unit)
            else:
                todo = self._perform(work)

    def _forward(self, work: Work) -> bool:
        """Pass work of a batch to the thread that serves the batch; return whether there is such a thread."""
        mailbox = self._mailboxes.get(getattr(work[1], "unit", 0))
        if mailbox is None:
            return False
        mailbox.put(work)
        return True

    def _serve_batch(self, first: Work, unit: int) -> list[Work]:
        """Call the handler in this thread with all messages of a unit of work that is a batch.

        Returns:
            The work that follows the call at the end of the batch; empty if the threads are closed before.
        """
        mailbox: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._mailboxes[unit] = mailbox
        work: Work | None = first
        try:
            while work is not None:
                if isinstance(work[1], DeliverEndOfBatch):
                    # The next work may be decided before this returns, and any thread may do it.
                    del self._mailboxes[unit]
                    return self._perform(work)
                for each in self._perform(work):
                    self.post(each)
                if self._closed:
                    break
                work = mailbox.get()
        finally:
            self._mailboxes.pop(unit, None)
        return []


class HandlerCaller:
    """Calls the handler of a listener; the driver's settler settles the messages.

    Args:
        driver: The driver that decides on the work; its settler carries out settlements.
        handler: The user's handler; any exception rolls its delivery back.
        on_stop: Called when the handler requests a stop.
        stop_within: Time that running handlers get at such a stop.

    Attributes:
        engine: The part of the engine that a delivery may use.
    """

    def __init__(
        self,
        driver: Driver,
        handler: Handler,
        *,
        on_stop: Callable[[StopAsked], object],
        stop_within: timedelta,
    ) -> None:
        settings = driver.settings
        delivery = settings.delivery
        self._driver = driver
        self._counters = driver.counters
        self._settler = driver.settler
        self._on_stop = on_stop
        self._stop_within = stop_within
        self._handler = traced(handler, str(delivery.destination))
        self._attempt_log = driver.attempt_log
        self._context_name = settings.context_name
        self._batch_size = delivery.batch_size if delivery.batch_size > 1 else None
        self._handling = str(delivery.handling)
        self._transacted = settings.transacted
        self._reply_to = settings.reply_to
        self._hears_dates = settings.spec is not None and settings.spec.allow_message_delays
        self._name = settings.name
        self.engine = HandlerEngine(
            destination=delivery.destination,
            transacted=settings.transacted,
            principal=settings.principal,
            send=self._send,
            acknowledge=self._acknowledge if delivery.hold_until_ack else None,
            result_property=settings.result_property,
            find=settings.find,
        )

    def deliver(self, buffer: ReceiveBuffer, decision: Deliver) -> list[Work]:
        """Call the handler with a message; return the next work."""
        call = decision.call
        if not buffer.open:  # it is lost already
            self._driver.not_delivered(decision.unit, decision.seen)
            return self._over((HandlerNotCalled(call=call),))
        received, message = buffer.held[decision.delivery]
        if message is None:
            raise AssertionError("an undecodable message is never delivered")
        if self._batch_size is not None:
            try:
                # At once: the transport may have to acknowledge before the commit, to get more.
                self._settler.unit_of(buffer, decision.unit, received).acknowledge(received)
            except ConnectionLostError as error:
                lost = ConnectionLost(failure=Failure.of(error, with_trace=False))
                self._driver.report(buffer.link, lost)
                self._driver.not_delivered(decision.unit, decision.seen)
                return self._over((HandlerNotCalled(call=call),))
            except Exception as error:  # noqa: BLE001 - a worker's edge: the batch must not slip out of hand
                self._driver.not_delivered(decision.unit, decision.seen)
                return self._over((HandlerRaised(call=call, failure=Failure.of(error)),))
        given = decision.state.handling
        handling = self._handling if given is None else str(given)
        delivery = Delivery(message, self.engine, buffer, call, decision.unit, handling, received)
        delivery.tell(decision, buffer.origin(decision.delivery), self._batch_size)
        began = self._driver.clock()
        return self._over(self.call(delivery) or (HandlerReturned(call=delivery.call),), began)

    def deliver_end_of_batch(self, buffer: ReceiveBuffer, decision: DeliverEndOfBatch) -> list[Work]:
        """Call the handler with the EndOfBatch message; return the next work."""
        delivery = Delivery(_END_OF_BATCH, self.engine, buffer, decision.call, decision.unit)
        delivery.tell_end_of_batch(decision, self._batch_size)
        with self._driver.lock:
            self._counters.end_batch()
        began = self._driver.clock()
        return self._over(self.call(delivery) or (HandlerReturned(call=delivery.call),), began)

    def _over(self, events: tuple[Event, ...], began: float | None = None) -> list[Work]:
        driver = self._driver
        seconds = 0.0 if began is None else driver.clock() - began
        with driver.lock:
            self._counters.active -= 1
            self._counters.handler_seconds += seconds
            todo = driver.handle(events)
        driver.flush_log()
        return todo

    def call(self, delivery: Delivery) -> tuple[Event, ...]:
        """Call the handler; return the events for the machine.

        The result is empty if the handler returned and changed nothing on the delivery.
        """
        end: Event | None = None
        context = self._context_name
        if context is not None:
            _enter.info("%s", context)
        try:
            result = self._handler(delivery)
            if result is not None:
                refuse_unrun("the handler", result)
        except BaseException as error:  # noqa: BLE001 - a worker's edge: it becomes a rollback
            _log.warning(
                "%s: the handler raised %s at attempt %d of message %s",
                self._name,
                type(error).__name__,
                delivery.redelivery_count + 1,
                delivery.message.message_id,
                # At its first failure in this process. A message that fails again and again would
                # fill the log with the same traceback.
                exc_info=loggable(error) if delivery.exception_class is None else None,
            )
            end = HandlerRaised(call=delivery.call, failure=(failure := Failure.of(error)))
            secrets = delivery.buffer.link.connection.secrets
            self._counters.note_failure(failure, secrets)
            if self._attempt_log is not None and delivery.message.message_id is not None:
                name = self._attempt_log.name(delivery.message.message_id, delivery.received_from)
                self._attempt_log.failed(name, failure, secrets)
        finally:
            if context is not None:
                _exit.info("%s", context)
        try:
            if (
                delivery.rollback_only
                or delivery.user_rollback_data
                or delivery.stop_is_new
                or delivery.changed_handling is not None
            ):
                return (*self._wishes(delivery), end or HandlerReturned(call=delivery.call))
        except Exception as error:  # noqa: BLE001 - a worker's edge, and it holds values of a user
            _log.error(
                "%s: properties that the handler set on its delivery can't be read; the delivery counts as "
                "failed",
                self._name,
                exc_info=loggable(error),
            )
            end = HandlerRaised(call=delivery.call, failure=Failure.of(error))
        return () if end is None else (end,)

    def _wishes(self, delivery: Delivery) -> tuple[Event, ...]:
        """Return the events for the changes that a handler made to its delivery. Source: J169-J172, J176."""
        events: list[Event] = []
        if delivery.rollback_only:
            events.append(RollbackAsked(call=delivery.call))
        handling = delivery.changed_handling
        if delivery.user_rollback_data or handling is not None:
            events.append(
                StateSet(
                    call=delivery.call,
                    rollback_data=dict(delivery.user_rollback_data),
                    handling=None if handling is None else RedeliveryHandling.parse(handling),
                )
            )
        # Once: an acknowledgement after the end of the handler must not repeat a stop that was resumed.
        if (reason := delivery.take_stop()) is not None:
            if self._attempt_log is not None:
                buffer: ReceiveBuffer = delivery.buffer
                self._attempt_log.keep_stop(reason, delivery.message.message_id, lambda: buffer.open)
            stop = StopAsked(reason=reason, within=self._stop_within, by_handler=True)
            self._on_stop(stop)
            events.append(stop)
        return tuple(events)

    def _acknowledge(self, delivery: Delivery) -> None:
        """Handle a call of `acknowledge`, in any thread. Source: J195, J196."""
        wishes, said = self._wishes(delivery), Acknowledged(call=delivery.call)
        # A stop rolls back unacknowledged messages, so it comes last.
        if wishes and wishes[-1].__class__ is StopAsked:
            self._driver.feed(*wishes[:-1], said, wishes[-1])
        else:
            self._driver.feed(*wishes, said)

    def _send(self, delivery: Delivery, outgoing: Outgoing) -> None:
        buffer: ReceiveBuffer = delivery.buffer
        if not buffer.open:
            raise ConnectionLostError(
                "the connection was lost: this delivery is rolled back and will be redelivered"
            )
        connection = buffer.link.connection
        (outgoing,) = with_current_trace((outgoing,))
        if self._reply_to is not None and outgoing.message.reply_to is None:
            outgoing = replace(outgoing, message=replace(outgoing.message, reply_to=self._reply_to))
        if self._hears_dates and outgoing.delay is None:
            outgoing = replace(outgoing, delay=time_left(outgoing.message, datetime.now(UTC)))
        later = (
            bool(outgoing.delay) and self._settler.has_limbo and not connection.capabilities.delayed_delivery
        )
        check_sendable(connection, replace(outgoing, delay=None) if later else outgoing)
        if later:
            self._settler.send_later(delivery, outgoing)
        elif self._transacted:
            self._settler.unit_to_join(delivery).send(outgoing)
        else:
            connection.send((outgoing,))

    def record_attempt(self, buffer: ReceiveBuffer, decision: RecordAttempt) -> list[Work]:
        """Store an attempt; return the next work."""
        attempt_log, number = self._attempt_log, decision.delivery
        if attempt_log is None or decision.message_id is None:
            raise AssertionError("attempts are recorded where there is a store, of messages with an id")
        event: Event
        try:
            name = attempt_log.name(decision.message_id, buffer.origin(number))
            found = attempt_log.begin((name,), lambda: self._settler.names_ahead(buffer, number))[name]
            event = self.answer(number, found)
        except TransientStoreError as error:  # the attempt log has said it
            event = AttemptNotRecorded(delivery=number, failure=Failure.of(error, with_trace=False))
        except Exception as error:  # noqa: BLE001 - a worker's edge: the message waits after any error
            _log.warning(
                "%s: an attempt could not be recorded; its message waits, retrying", self._name, exc_info=True
            )
            event = AttemptNotRecorded(delivery=number, failure=Failure.of(error))
        driver = self._driver
        with driver.lock:
            todo = driver.handle((event,))
        driver.flush_log()
        return todo

    def answer(self, number: int, found: AttemptLookup) -> Event:
        """Return the event for the machine after a message's attempt was stored."""
        if found.handled:
            return FoundHandled(delivery=number)
        return recorded(self._driver.settings, number, found)
