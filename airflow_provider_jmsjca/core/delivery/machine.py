"""The delivery machine of one activation: events in, decisions out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from airflow_provider_jmsjca.core.delivery.concurrency import Permits
from airflow_provider_jmsjca.core.delivery.decisions import (
    CloseConnection,
    CloseConsumer,
    Connect,
    Decision,
    Log,
    LogLevel,
    OpenConsumer,
    Stopped,
)
from airflow_provider_jmsjca.core.delivery.events import (
    Acknowledged,
    AttemptNotRecorded,
    AttemptRecorded,
    ConnectFailed,
    ConnectionLost,
    ConnectionOpened,
    ConsumerOpened,
    Event,
    FoundHandled,
    FoundInDoubt,
    HandlerNotCalled,
    HandlerRaised,
    HandlerReturned,
    MessageArrived,
    ReconnectAsked,
    ResumeAsked,
    RollbackAsked,
    Start,
    StateSet,
    StopAsked,
    SuspendAsked,
    Tick,
    UnitCommitted,
    UnitFailed,
    UnitInDoubt,
    UnitLost,
)
from airflow_provider_jmsjca.core.delivery.in_flight import (
    Gate,
    InFlightMessage,
    Phase,
    TimerKind,
    Timers,
    Unit,
)
from airflow_provider_jmsjca.core.delivery.outage import ActivationState, Outage
from airflow_provider_jmsjca.core.delivery.processing import Processing
from airflow_provider_jmsjca.core.delivery.settings import DeliverySettings
from airflow_provider_jmsjca.core.redelivery import RedeliveryTracker


@dataclass(slots=True, eq=False)
class FastPathUnit:
    """A unit of work with one message on its first delivery.

    A `Unit` in few fields. It becomes a `Unit` as soon as anything out of the ordinary happens to any message
    in flight.

    Attributes:
        unit: The unit's number.
        call: The number of the handler call.
        delivery: The number of the message.
        message_id: The message's id.
        group: The message's JMSXGroupID.
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
        """Return the equivalent `Unit`."""
        message = InFlightMessage(
            delivery=self.delivery,
            key=self.message_id,
            message_id=self.message_id,
            group=self.group,
            poison=False,
            undecodable=False,
            counted=True,
            calls=1,
        )
        return Unit(
            number=self.unit,
            phase=Phase.COMMITTING if self.committing else Phase.HANDLING,
            members=[message],
            call=None if self.committing else self.call,
            calls=[self.call],
        )


def allows_fast_path(settings: DeliverySettings) -> bool:
    """Say whether, by these rules, a message can be delivered at once, and is a unit of work by itself."""
    return (
        settings.batch_size == len(settings.sources) == 1
        and not (settings.hold_until_ack or settings.record_attempts or settings.in_progress)
        and settings.handling.action_for(0) is None
    )


class DeliveryMachine:
    """Decides everything that an activation does with its messages, and does none of it.

    A driver reports events and carries out the decisions in order. If the connection or the process is lost
    at any step, the broker redelivers unsettled messages, and no message is settled twice. Not thread-safe:
    the driver serialises.

    Args:
        settings: The rules.
        tracker: Counts and per-message state; shared with nobody else.
        chance: Returns a random number, 0 up to but not including 1, for jitter.
        room: Limits shared with other machines; `None`: there are none.
        take_back: Called with the id and the source of a message that goes back to the broker undelivered, to
            remove its stored attempt. It must not block.

    Attributes:
        state: As JMSJCA reports it.
        suspended: Whether delivery is suspended by hand.

    Source: J12, J13, J81-J84, J119, J122, J128-J148, J167-J172, J183-J203, W22, W24-W27.
    """

    def __init__(
        self,
        settings: DeliverySettings,
        tracker: RedeliveryTracker,
        chance: Callable[[], float],
        room: Permits | None = None,
        take_back: Callable[[str, int], object] = lambda *_: None,
    ) -> None:
        self.state = ActivationState.DOWN
        self.suspended = False
        self._decisions: list[Decision] = []
        self._tracker = tracker
        self._timers = Timers()
        self._chance = chance
        self._outage = Outage(settings.outage)
        timeout = settings.transaction_timeout
        self._timeout = None if timeout is None else timeout.total_seconds()
        self._gate = Gate()
        self._processing = Processing(
            settings,
            tracker,
            self._timers,
            chance,
            self._decide,
            gate=self._gate,
            room=room,
            take_back=take_back,
        )
        self._calls = self._processing.calls
        self._remembered = self._processing.remembered
        self._failing = self._processing.failing
        self._next_number = self._processing.next_number
        # The fast path is open while no message waits on the ordinary path: none may be overtaken.
        self._allows_short_way = room is None and allows_fast_path(settings)
        self._concurrency = self._free = settings.concurrency
        self._clear = False
        self._directs: dict[str, FastPathUnit] = {}  # by message id, in the order in which they began
        self._running = False
        self._connected = False
        self._consuming = False
        self._standby = False
        self._left_alone = False
        self._stop: StopAsked | None = None

    @property
    def deadline(self) -> float | None:
        """When to send `Tick`, on the clock of `handle`; `None` while nothing is timed."""
        directs, timeout = self._directs, self._timeout
        if not directs or timeout is None:
            return self._timers.deadline
        oldest = next(iter(directs.values()))
        return min(oldest.began + timeout, self._timers.deadline or math.inf)

    @property
    def idle(self) -> bool:
        """Whether no message is being handled, delayed or settled."""
        return not self._directs and self._processing.idle

    @property
    def opening(self) -> bool:
        """Whether the activation is connected, and the broker has not confirmed the subscriptions yet."""
        return self._consuming and self.state is ActivationState.CONNECTING

    @property
    def stopping(self) -> bool:
        """Whether a stop is under way."""
        return self._running and self._stop is not None

    @property
    def in_flight(self) -> int:
        """Number of messages received and neither settled nor lost with their connection."""
        return len(self._directs) + self._processing.in_flight

    @property
    def failing(self) -> int | None:
        """Number of messages that have failed since one was last settled, or delivered for the first time.

        `None`: a handler has another message, which may still succeed.
        """
        return None if self._directs or self._processing.handles_others else len(self._failing)

    @property
    def wants_message(self) -> bool:
        """Whether no message waits, and a unit of work could begin with one more message, or take it."""
        return self._processing.wants_message(len(self._directs))

    def handle(self, event: Event, now: float) -> list[Decision]:
        """Handle an event; return decisions, to be carried out in order.

        Args:
            event: The event to handle.
            now: Seconds of a clock that never goes back.
        """
        self._timers.now = now
        if self._directs:
            self._leave_fast_path()
        self._dispatch(event)
        self._processing.fill()
        if self._stop is not None or self.suspended:
            self._close_when_idle()
        if self._allows_short_way:
            self._clear = self._processing.is_clear
            self._free = self._concurrency - self._processing.under_way
        decisions, self._decisions = self._decisions, []
        return decisions

    # -- the fast path: three calls instead of three events and their decisions ----------------------------

    def begin_directly(
        self, delivery: int, message_id: str, group: str | None, now: float
    ) -> FastPathUnit | None:
        """Accept an arrived message that has no redelivered flag and is not parked.

        Args:
            delivery: As in `MessageArrived`.
            message_id: As in `MessageArrived`.
            group: As in `MessageArrived`.
            now: As for `handle`.

        Returns:
            The unit of the message to deliver now, as by `Deliver`. `None`: send `MessageArrived`, because
            the limit of in-flight messages is reached, this one has state, or it may have to wait.
        """
        if not (self._clear and self._consuming) or self._stop is not None:
            return None
        directs = self._directs
        if len(directs) >= self._free or message_id in directs:
            return None
        if group and self._concurrency > 1:  # one of its group may be in hand
            return None
        for known in self._remembered:
            if message_id in known:
                return None
        if self._failing:
            self._failing.clear()
        number = self._next_number
        directs[message_id] = direct = FastPathUnit(number(), number(), delivery, message_id, group, now)
        return direct

    def duplicate_dropped(self, message_id: str | None) -> None:
        """A message has come from the in-progress queue, and is settled without being told of."""
        self._processing.duplicate_dropped(message_id)

    def returned_to_broker(self, event: MessageArrived) -> None:
        """A message has come that wasn't told of, and has gone back to the broker."""
        self._processing.returned_to_broker(event)

    def subscribed(self) -> None:
        """Note that the consumers are open; `returned_to_broker` had the messages of earlier ones."""
        self._tracker.subscribed()

    def is_open(self, unit: int) -> bool:
        """Whether handlers may still send messages in a unit of work."""
        for direct in self._directs.values():
            if direct.unit == unit:
                return not direct.committing
        return self._processing.is_open(unit)

    def returned_directly(self, direct: FastPathUnit) -> bool:
        """Record the handler's return; return whether to commit now, else send `HandlerReturned`."""
        if self._directs.get(direct.message_id) is not direct:
            return False
        direct.committing = True
        return True

    def committed_directly(self, direct: FastPathUnit) -> bool:
        """Record the commit of the unit; return whether it is complete, else send `UnitCommitted`."""
        if self._directs.get(direct.message_id) is not direct:
            return False
        del self._directs[direct.message_id]
        if self._failing:
            self._failing.clear()
        return True

    def _leave_fast_path(self) -> None:
        """Turn the units of the fast path into ordinary ones."""
        for direct in self._directs.values():
            self._processing.adopt(direct.as_unit(), direct.began)
        self._directs.clear()

    def _decide(self, decision: Decision) -> None:
        self._decisions.append(decision)

    def _log(self, level: LogLevel, text: str) -> None:
        self._decide(Log(level=level, text=text))

    def _dispatch(self, event: Event) -> None:  # noqa: C901, PLR0912, PLR0915 - the table of all events
        processing = self._processing
        match event:
            case MessageArrived():
                wanted = self._consuming and self._stop is None
                (processing.arrived if wanted else processing.returned_to_broker)(event)
            case HandlerReturned(call=call):
                self._calls.returned(call)
            case UnitCommitted(unit=unit):
                processing.committed(unit)
            case AttemptRecorded(delivery=delivery, attempt=attempt, in_doubt=in_doubt):
                processing.recorded(delivery, attempt, in_doubt=in_doubt)
            case FoundInDoubt(delivery=delivery, attempt=attempt):
                processing.recorded(delivery, attempt, set_aside=True)
            case FoundHandled(delivery=delivery):
                processing.handled_before(delivery)
            case Acknowledged(call=call):
                self._calls.acknowledged(call)
            case Tick():
                self._tick()
            case HandlerRaised(call=call, failure=failure):
                self._calls.raised(call, failure)
            case HandlerNotCalled(call=call):
                self._calls.not_called(call)
            case RollbackAsked(call=call):
                self._calls.rollback_asked(call)
            case StateSet(call=call, rollback_data=data, handling=handling):
                if (key := self._calls.key_of(call)) is not None:
                    self._tracker.note(key, rollback_data=data, handling=handling)
            case AttemptNotRecorded(delivery=delivery, failure=failure):
                processing.not_recorded(delivery, failure)
            case UnitFailed(unit=unit, failure=failure):
                processing.failed(unit, failure)
            case UnitLost(unit=unit):
                processing.gone(unit, in_doubt=False)
            case UnitInDoubt(unit=unit):
                processing.gone(unit, in_doubt=True)
            case Start():
                self._start()
            case ConnectionOpened():
                self._connection_up()
            case ConsumerOpened():
                self._consumer_opened()
            case ConnectFailed():
                self._connect_failed(event)
            case ConnectionLost():
                why = event.failure.message if event.failure is not None else "connection lost"
                self._connection_lost(why, logged=event.logged)
            case ReconnectAsked():
                self._reconnect(event)
            case SuspendAsked():
                self._suspend()
            case ResumeAsked():
                self._resume()
            case StopAsked():
                self._stop_asked(event, level=LogLevel.WARNING if event.by_handler else LogLevel.INFO)
            case _:
                assert_never(event)

    def _tick(self) -> None:
        for kind, owner in self._timers.take_due():
            match kind:
                case TimerKind.CONNECT:
                    self.state = ActivationState.CONNECTING
                    self._decide(Connect())
                case TimerKind.STOP:
                    self._log(LogLevel.WARNING, "handlers didn't return in time: they are left alone")
                    self._left_alone = True
                    self._processing.abandon()
                case _:
                    self._processing.timer(kind, owner)

    # -- connection ---------------------------------------------------------------------------------------

    def _start(self) -> None:
        if not self._running:
            self._running = True
            self._left_alone = False
            self._stop = None
            self._gate.stopping = False
            self._outage.over()
            self.state = ActivationState.CONNECTING
            self._decide(Connect())

    def _connection_up(self) -> None:
        if not self._running or self._stop is not None:
            self._decide(CloseConnection())
            return
        self._connected = True
        if self.suspended:  # nothing is subscribed until it is resumed
            self.state = ActivationState.UP
            self._outage.over()
        self._consume()

    def _consumer_opened(self) -> None:
        if self._consuming:
            self._standby = False
            self._outage.over()
            if self._stop is None:
                self.state = ActivationState.UP

    def _consume(self) -> None:
        if self._connected and not self.suspended and self._stop is None:
            if not self._consuming:
                self.state = ActivationState.CONNECTING
                self._decide(OpenConsumer())
            self._consuming = True
            self._gate.open = True

    def _connect_failed(self, event: ConnectFailed) -> None:
        if not self._running or self._stop is not None:
            return
        if event.permanent:
            why = f"the broker refuses: {event.failure.message}" if event.by_broker else event.failure.message
            self._stop_asked(StopAsked(reason=why), level=LogLevel.ERROR)
            return
        if self._connected:
            self._decide(CloseConnection())
        self._disconnected()
        self._connect_later(event.failure.message, standby=event.standby, logged=event.logged)

    def _connection_lost(self, why: str, *, logged: bool = False) -> None:
        if not self._connected:
            return
        self._disconnected()
        if self._stop is None:
            self._outage.began()
            self._connect_later(why, logged=logged)

    def _reconnect(self, event: ReconnectAsked) -> None:
        if self._connected:
            self._decide(CloseConnection())
        self._connection_lost(event.reason, logged=event.logged)

    def _disconnected(self) -> None:
        self._connected = self._consuming = self._gate.open = False
        self._processing.connection_lost()

    def _connect_later(self, why: str, *, logged: bool, standby: bool = False) -> None:
        self.state, pause = self._outage.pause(self._chance())
        if not standby:
            level = LogLevel.DEBUG if logged else self._outage.level()
            self._log(level, f"{why}; connecting again in {pause.total_seconds():.1f} s")
        elif not self._standby:
            self._log(LogLevel.INFO, f"{why}; standing by, and trying again until it is free")
        self._standby = standby
        self._timers.set(TimerKind.CONNECT, 0, pause)

    # -- suspend, resume, stop ----------------------------------------------------------------------------

    def _suspend(self) -> None:
        self.suspended = True
        self._gate.open = False
        self._processing.interrupt()

    def _resume(self) -> None:
        self.suspended = False
        self._consume()

    def _stop_asked(self, event: StopAsked, *, level: LogLevel) -> None:
        if not self._running:
            return
        if self._stop is not None:
            self._timers.hasten(TimerKind.STOP, 0, event.within)
            return
        self._stop = event
        self._log(level, f"message delivery stops: {event.reason}")
        self.state = ActivationState.DISCONNECTING
        self._timers.clear(TimerKind.CONNECT, 0)
        self._timers.set(TimerKind.STOP, 0, event.within)
        self._gate.open = False
        self._gate.stopping = True
        self._processing.interrupt()

    def _close_when_idle(self) -> None:
        if not self._processing.idle:
            return
        if self._running and self._stop is not None:
            clean = self._connected and not (self._left_alone or self._processing.has_begun_waiting)
            self._processing.drop_waiting()
            self._timers.clear(TimerKind.STOP, 0)
            self._running = self._connected = self._consuming = False
            self.state = ActivationState.DOWN
            self._decide(CloseConnection(clean=clean))
            self._decide(Stopped(reason=self._stop.reason))
        elif self.suspended and self._consuming:
            self._processing.drop_waiting()
            self._consuming = False
            self.state = ActivationState.UP
            self._decide(CloseConsumer())
