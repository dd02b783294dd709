"""Drives the delivery machine of a listener: events in from all threads, decisions out to those that act."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta

from airflow_provider_jmsjca.core.delivery import ActivationState, DeliveryMachine
from airflow_provider_jmsjca.core.delivery.decisions import (
    CloseConnection,
    CloseConsumer,
    CommitUnit,
    Connect,
    Decision,
    Deliver,
    Leave,
    Log,
    OpenConsumer,
    RollBackUnit,
    Stopped,
    Wait,
)
from airflow_provider_jmsjca.core.delivery.events import (
    ConnectFailed,
    ConnectionLost,
    ConnectionUp,
    ConsumerOpened,
    Event,
    StopAsked,
    Tick,
)
from airflow_provider_jmsjca.core.delivery.refusals import Refusals
from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.engine.admission import Admission
from airflow_provider_jmsjca.engine.delivery import in_context
from airflow_provider_jmsjca.engine.levels import LEVELS
from airflow_provider_jmsjca.engine.listener_settings import ListenerSettings
from airflow_provider_jmsjca.engine.outage import Bearer, Intake, Link
from airflow_provider_jmsjca.engine.outage import Connect as ConnectFunction
from airflow_provider_jmsjca.engine.receivers import InDoubt, Receivers
from airflow_provider_jmsjca.engine.rollbacks import Rollbacks
from airflow_provider_jmsjca.engine.statistics import Tally
from airflow_provider_jmsjca.engine.workers import Work, Workers
from airflow_provider_jmsjca.errors import JmsError
from airflow_provider_jmsjca.transports.base import UnitOfWork

_log = logging.getLogger("airflow_provider_jmsjca.listener")
_FAR = float("inf")
STOP_WITHIN = timedelta(seconds=30)


class Dispatcher:
    """The machine, its lock, its clock, and who carries out what it decides.

    Decisions about the connection go to the link, the rest is work for the pool. Nothing here blocks: any
    thread may feed events, the connection's reader too.

    Args:
        settings: How to consume.
        machine: Fresh; nobody else touches it.
        connect: Opens one connection, or raises `JmsError`.
        clock: Seconds, monotonic.
        takes_all: Tell the machine of every message as it comes, for one that has a choice to make or keeps
            the limit itself. Otherwise a message stays outside until a thread has time for it.

    Attributes:
        lock: Guards the machine and everything here.
        tally: What has happened.
        units: What handlers sent, by unit of work, until it is committed or rolled back.
        rollbacks: Finished before anything else is done with the same messages.
        settled: What was settled lately.
        stopped: Set when the activation has stopped.
        stop_reason: Why.
        refusal: Why the broker refuses for good, as far as is known; `None` while it doesn't.
        answered: Whether the first attempt to connect has come to an end.
        gives_up: Asked at such a refusal whether to stop for it; otherwise it is tried again.
        on_stop: Called when a handler asks for a stop, not under the lock.
        stop_within: How long running handlers may take when one of them asks for a stop.
        last_activity: When a message last arrived or was settled, on the clock.
        admission: What may be taken in hand.
        admit: Takes in what has come. `perform`: does what the machine decides.
        alarm: When the machine is asked for what is due.
    """

    def __init__(
        self,
        settings: ListenerSettings,
        machine: DeliveryMachine,
        connect: ConnectFunction,
        clock: Callable[[], float],
        *,
        takes_all: bool = False,
    ) -> None:
        self.settings = settings
        self.machine = machine
        self.lock = threading.Lock()
        self.tally = Tally()
        self.units: dict[int, UnitOfWork] = {}
        self.stopped = threading.Event()
        self.stop_reason = ""
        self.fault: JmsError | None = None
        self.refusal: JmsError | None = None
        self.answered = False
        self.gives_up: Callable[[], bool] = lambda: True
        self.on_stop: Callable[[StopAsked], object] = lambda _: None
        self.last_activity = clock()
        self.stop_within = STOP_WITHIN
        self.perform: Callable[[Work], list[Work]] = lambda _: []
        self._connect = connect
        self.clock = clock
        self._lines: deque[Log] = deque()
        self.rollbacks = Rollbacks(settings.name)
        self._unit_sizes: dict[int, int] = {}
        self._ended = self._woken = False
        self._delete_durable = False
        self.refusals = Refusals()
        self._in_doubt = InDoubt()
        self.link = self._new_link()
        self.admit = self._admit
        self.workers = Workers(settings, self._take, self._do)
        intake = Intake(self.link)
        intake.open = False
        self.admission = Admission(settings, machine, self.tally, self.workers, intake, takes_all=takes_all)
        self.settled = self.admission.settled
        self.alarm = _FAR
        self._alarm_set = threading.Event()

    def _new_link(self) -> Link:
        receivers = Receivers(self.settings, self.refusals, self._in_doubt)
        return Link(self.settings, self._connect, self, receivers)

    @property
    def state(self) -> ActivationState:
        """As JMSJCA reports it."""
        return self.machine.state

    @property
    def refused(self) -> tuple[str, ...]:
        """What the broker says when it refuses, of itself or of a destination, while others are consumed."""
        if self.refusal is not None:
            return (str(self.refusal),)
        sources = self.settings.delivery.sources
        return tuple(f"{sources[number]}: {reason}" for number, reason in self.refusals.reasons.items())

    def start(self) -> None:
        """Start the threads."""
        self.tally.began = self.clock()
        self.workers.start()
        threading.Thread(target=self._keep_time, name=f"jms-clock {self.settings.name}", daemon=True).start()

    # -- events in ----------------------------------------------------------------------------------------

    def feed(self, *events: Event) -> None:
        """Tell the machine; what it decides is done by others."""
        with self.lock:
            todo = self.handle(events)
        for work in todo:
            self.workers.post(work)
        if self._lines or self._ended:
            self.speak()

    def handle(self, events: Iterable[Event]) -> list[Work]:
        """Tell the machine and return the work it decides on. Under the lock; `speak` afterwards."""
        now = self.clock()
        self.last_activity = now
        todo: list[Work] = []
        handle = self.machine.handle
        admission = self.admission
        if admission.takes_all and admission.intake.arrivals:
            events = (*admission.take_all(), *events)
        for event in events:
            for decision in handle(event, now):
                kind = decision.__class__
                if kind is Deliver:
                    self.tally.deliver(decision.seen, now)  # type: ignore[union-attr]  # a Deliver
                    todo.append((admission.intake, decision))
                elif kind is CommitUnit:
                    todo.append((admission.intake, decision))
                else:
                    self._decided(decision, todo)
        self.arm()
        return todo

    def arm(self) -> None:
        """See to it that the machine's next deadline is kept. Under the lock."""
        deadline = self.machine.deadline
        if deadline is not None and deadline < self.alarm:
            self.alarm = deadline
            self._alarm_set.set()

    def speak(self) -> None:
        """Write the log lines that were decided on, then say if it has stopped; not under the lock."""
        while self._lines:
            try:
                line = self._lines.popleft()
            except IndexError:  # another thread was quicker
                break
            with in_context(self.settings.context_name if line.of_delivery else None):
                _log.log(LEVELS[line.level], "%s: %s", self.settings.name, line.text)
        if self.settled.has_repeated:
            self.settled.settle_again(self.settings.name)
        if self._ended:
            self.stopped.set()

    def report(self, link: Bearer, event: Event) -> None:
        """Something happened to a link; only the current one counts."""
        with self.lock:
            told = link.is_lost
            # A broker that closes the connection with a refusal may be heard to close it first.
            if link is not self.link or (told and not (isinstance(event, ConnectFailed) and event.permanent)):
                return
            self.answered = True
            if isinstance(event, ConnectionUp):
                self.tally.connections += 1
                self.refusal = None
                self.settled.connected(stable=link.connection.capabilities.stable_message_id)
            elif isinstance(event, (ConnectFailed, ConnectionLost)):
                link.is_lost = True
                self.admission.intake.open = False
                link.close()
                self.refusal = None
                if isinstance(event, ConnectFailed) and event.permanent:
                    self.refusal = link.fault
                    self.fault = link.fault if self.gives_up() else None
                    event = replace(event, permanent=self.fault is not None)
                    if told and self.fault is None:
                        return
            todo = self.handle((event,))
        for work in todo:
            self.workers.post(work)
        self.speak()

    def arrived(self, intake: Intake) -> None:
        """A message came; called by the connection's reader."""
        self.workers.arrived(intake)

    def ready(self, intake: Intake) -> None:
        """The consumers are there; from now on it counts that nothing comes."""
        with self.lock:
            if intake.link is not self.link or intake.link.is_lost:
                return
            todo = self.handle((ConsumerOpened(),))
        for work in todo:
            self.workers.post(work)
        self.speak()
        self.arrived(intake)

    def wake(self) -> None:
        """There may be room for what waits; from any thread, also under the lock of another dispatcher."""
        self._woken = True
        self._alarm_set.set()

    def idle_for(self) -> float:
        """For how many seconds there has been nothing to do; 0 while there is, and while not connected."""
        with self.lock:
            machine = self.machine
            if machine.state is not ActivationState.UP or machine.suspended or machine.in_hand:
                return 0.0
            return self.clock() - self.last_activity if machine.idle else 0.0

    def keeps(self) -> bool:
        """Whether it has messages that stay unsettled; for times when nothing is in hand."""
        return bool(self.admission.intake.held)

    def _take(self, intake: Intake) -> list[Work] | None:
        return self.admit(intake)

    def _admit(self, intake: Intake) -> list[Work] | None:
        with self.lock:
            todo = self.take_one() if self.admission.may_take(intake) else None
        if self._lines or self.settled.has_repeated or self._ended:
            self.speak()
        return todo

    def take_one(self) -> list[Work]:
        """Take in what came first, or all if the machine chooses. Under the lock; `speak` afterwards."""
        if self.admission.takes_all:
            return self.handle(())
        event = self.admission.take()
        if event is None:  # settled before, or not for us any more: something came all the same
            self.last_activity = self.clock()
            return []
        return self.handle((event,))

    # -- decisions out ------------------------------------------------------------------------------------

    def _decided(self, decision: Decision, todo: list[Work]) -> None:
        match decision:
            case Log():
                self._lines.append(decision)
            case Wait():
                pass
            case RollBackUnit(unit=unit):
                self.tally.rolled_back += self.leave_unit(unit)
                if (work := self.units.pop(unit, None)) is not None:
                    self.rollbacks.waiting.append(work)
                    todo.append((self.admission.intake, decision))
            case Connect():
                self.link = self._new_link()
                self.link.start()
            case OpenConsumer():
                self.admission.begin_anew(Intake(self.link))
                self.link.consume(self.admission.intake)
            case CloseConsumer():
                self.admission.intake.open = False
                self.link.stop_consuming()
            case CloseConnection(clean=clean):
                self.admission.intake.open = False
                self.link.close(delete_durable=clean and self._may_delete())
            case Stopped(reason=reason):
                self.stop_reason = reason
                self._end()
            case _:
                todo.append((self.admission.intake, decision))

    def _end(self) -> None:
        self._ended = True
        self._alarm_set.set()
        self.workers.close()

    def _do(self, work: Work) -> list[Work]:
        if self.rollbacks.waiting:
            self.rollbacks.finish()
        if work[1].__class__ is RollBackUnit:
            return []
        if work[1].__class__ is Leave:
            self._settle_singly(work[0])
            with self.lock:
                self.admission.admit_more()
            return []
        return self.perform(work)

    def _settle_singly(self, intake: Intake) -> None:
        """Consume anew without what a message that stays would break: order, a prefetch of one."""
        with self.lock:
            settings = self.settings
            if not any(each.in_order or each.one_of_several for each in settings.subscriptions):
                return
            first, *further = (
                replace(each, in_order=False, one_of_several=False) for each in settings.subscriptions
            )
            self.settings = replace(settings, subscription=first, further=tuple(further))
        failure = Failure(class_names=("ConnectionLostError",), message="a message stays unsettled")
        self.report(intake.link, ConnectionLost(failure=failure))

    def join_unit(self, unit: int) -> None:
        """A batch has one message more. Under the lock."""
        self._unit_sizes[unit] = self._unit_sizes.get(unit, 0) + 1

    def not_delivered(self, unit: int, seen: int) -> None:
        """The connection was lost before a handler could be called: there is no rollback of it to count."""
        with self.lock:
            self.tally.undeliver(seen)
            self._unit_sizes.setdefault(unit, 0)

    def leave_unit(self, unit: int) -> int:
        """A unit of work is over; return for how many messages its handler was called. Under the lock."""
        return self._unit_sizes.pop(unit, 1)

    # -- time ---------------------------------------------------------------------------------------------

    def _keep_time(self) -> None:
        while True:
            self._alarm_set.wait(None if self.alarm == _FAR else max(0.0, self.alarm - self.clock()))
            with self.lock:
                if self._ended:
                    return
                self._alarm_set.clear()
                deadline = self.machine.deadline
                self.alarm = _FAR if deadline is None else deadline
                due = deadline is not None and deadline <= self.clock()
                if self._woken:  # only then: a wake-up that comes now would be lost
                    self._woken = False
                    due = True
            if due:
                self.feed(Tick())

    def ask_stop(self, event: StopAsked, *, delete_durable: bool) -> None:
        """Stop; from any thread, but not from a signal handler.

        Args:
            event: For the machine.
            delete_durable: Whether the durable subscription may go, if that is asked for.
        """
        self._delete_durable = delete_durable
        self.feed(event)

    def _may_delete(self) -> bool:
        """Whether the subscription goes with the connection: never when messages come back to it. W33."""
        wanted = self._delete_durable and self.settings.delete_durable
        return wanted and not self.link.is_lost and self.tally.active == 0
