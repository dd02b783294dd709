"""The delivery machine of one activation: events in, decisions out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
from airflow_provider_jmsjca.core.delivery.outage import ActivationState, Outage
from airflow_provider_jmsjca.core.delivery.settings import DeliverySettings
from airflow_provider_jmsjca.core.delivery.states import FastPathUnit, Gate
from airflow_provider_jmsjca.core.delivery.units import TimerKind, Timers, Units
from airflow_provider_jmsjca.core.redelivery import RedeliveryTracker


def allows_fast_path(settings: DeliverySettings) -> bool:
    """Return whether these rules allow the fast path: each message is delivered at once, in its own unit."""
    return (
        settings.batch_size == len(settings.sources) == 1
        and not (settings.hold_until_ack or settings.record_attempts or settings.in_progress)
        and settings.handling.action_for(0) is None
    )


class DeliveryMachine:
    """Decides how an activation handles its messages; a driver carries out the decisions.

    The driver reports events and carries out the decisions in order. If the connection or the process is lost
    at any step, the broker redelivers unsettled messages, and no message is settled twice. Not thread-safe:
    the driver serializes all calls.

    Args:
        settings: The rules.
        tracker: Counts and per-message state; used by this machine alone.
        chance: Returns a random number, 0 up to but not including 1, for jitter.
        room: Limits shared with other machines; `None`: no shared limits.
        take_back: Called with the id and the source of a message that goes back to the broker undelivered, to
            remove its stored attempt. It must not block.

    Attributes:
        state: State of the activation, in JMSJCA's terms.
        suspended: Whether delivery is suspended on request.

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
        self._decide = self._decisions.append
        self._tracker = tracker
        self._timers = Timers()
        self._chance = chance
        self._outage = Outage(settings.outage)
        timeout = settings.transaction_timeout
        self._timeout = None if timeout is None else timeout.total_seconds()
        self._gate = Gate()
        self._units = units = Units(
            settings,
            tracker,
            self._timers,
            chance,
            self._decide,
            gate=self._gate,
            room=room,
            take_back=take_back,
        )
        self._pending = units.pending
        self._remembered = units.counts.remembered
        self._failing = units.counts.failing
        self._next_number = units.next_number
        # The fast path is open while no message waits on the ordinary path: none may be overtaken.
        self._allows_short_way = room is None and allows_fast_path(settings)
        self._concurrency = self._free = settings.concurrency
        self._clear = False
        self._directs: dict[str, FastPathUnit] = {}  # by message id, in the order in which they began
        self._running = False
        self._connected = False
        self._standby = False
        self._left_alone = False
        self._stop: StopAsked | None = None
        self._handlers: dict[type[Event], Callable[[Any], object]] = {
            MessageArrived: units.arrived,
            HandlerReturned: units.returned,
            UnitCommitted: units.committed,
            AttemptRecorded: units.recorded,
            FoundInDoubt: units.recorded,
            FoundHandled: units.handled_before,
            AttemptNotRecorded: units.not_recorded,
            Acknowledged: units.acknowledged,
            HandlerRaised: units.not_returned,
            HandlerNotCalled: units.not_returned,
            RollbackAsked: units.rollback_asked,
            StateSet: self._state_set,
            UnitFailed: units.failed,
            UnitLost: units.gone,
            UnitInDoubt: units.gone,
            Tick: self._tick,
            Start: self._start,
            ConnectionOpened: self._connection_up,
            ConsumerOpened: self._consumer_opened,
            ConnectFailed: self._connect_failed,
            ConnectionLost: self._connection_lost,
            ReconnectAsked: self._reconnect,
            SuspendAsked: self._suspend,
            ResumeAsked: self._resume,
            StopAsked: self._stop_asked,
        }

    @property
    def deadline(self) -> float | None:
        """Time at which the driver must send `Tick`, on the clock of `handle`; `None` while no timer runs."""
        due = self._timers.due.values()
        if not self._directs or self._timeout is None:
            return min(due, default=None)
        oldest = next(iter(self._directs.values()))
        return min((oldest.began + self._timeout, *due))

    @property
    def idle(self) -> bool:
        """Whether no message is being handled, delayed or settled."""
        return not self._directs and self._units.idle

    @property
    def opening(self) -> bool:
        """Whether the activation is connected, and the broker has not confirmed the subscriptions yet."""
        return self._gate.consuming and self.state is ActivationState.CONNECTING

    @property
    def stopping(self) -> bool:
        """Whether a stop is under way."""
        return self._running and self._stop is not None

    @property
    def in_flight(self) -> int:
        """Number of messages received and neither settled nor lost with their connection."""
        return len(self._directs) + self._units.in_flight

    @property
    def failing(self) -> int | None:
        """Number of messages that failed since the last success.

        A success is the settlement or the first delivery of any message. `None` while a handler has a message
        that has not failed, because that message may still succeed.
        """
        return None if self._directs or self._units.handles_others else len(self._failing)

    @property
    def wants_message(self) -> bool:
        """Whether no message is pending, and a new or existing unit of work could take one at once."""
        return self._units.wants_message(len(self._directs))

    def handle(self, event: Event, now: float) -> list[Decision]:
        """Handle an event; return decisions, to be carried out in order.

        Args:
            event: The event to handle.
            now: Current time in seconds, on a monotonic clock.
        """
        self._timers.now = now
        units = self._units
        if self._directs:
            for direct in self._directs.values():
                units.adopt(direct)
            self._directs.clear()
        self._handlers[event.__class__](event)
        units.fill()
        if self._stop is not None or self.suspended:
            self._close_when_idle()
        if self._allows_short_way:
            pending = self._pending
            self._clear = self._gate.open and not (pending.count or pending.claims or pending.owners)
            self._free = self._concurrency - len(units.by_number)
        decisions = self._decisions[:]
        self._decisions.clear()
        return decisions

    # -- the fast path: three calls instead of three events and their decisions ----------------------------

    def begin_directly(
        self, delivery: int, message_id: str, group: str | None, now: float
    ) -> FastPathUnit | None:
        """Begin a unit of work on the fast path, for a message on its first delivery.

        The caller must not pass messages with the redelivered flag, or copies that return after a delay.

        Args:
            delivery: As in `MessageArrived`.
            message_id: As in `MessageArrived`.
            group: As in `MessageArrived`.
            now: As for `handle`.

        Returns:
            The unit whose message the driver must deliver now, as for `Deliver`. `None` if delivery is
            interrupted, all units are in use, or the message may have to wait. Also `None` if an earlier
            delivery of the message is remembered (`DeliveryCounts.remembered`). The driver then sends
            `MessageArrived`.
        """
        if not self._clear:
            return None
        directs = self._directs
        if len(directs) >= self._free or message_id in directs:
            return None
        if group and any(each.group == group for each in directs.values()):
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
        """Record that the driver settled a message from the in-progress queue as a duplicate.

        The driver does not report the arrival of such a message.
        """
        self._units.duplicate_dropped(message_id)

    def returned_to_broker(self, event: MessageArrived) -> None:
        """Record that the driver returned a message to the broker without reporting its arrival."""
        self._units.returned_to_broker(event)

    def subscribed(self) -> None:
        """Record that the consumers are open.

        Before this call, the driver must pass each message that earlier consumers received, and that it has
        not reported, to `returned_to_broker`.
        """
        self._tracker.subscriptions += 1

    def is_open(self, unit: int) -> bool:
        """Whether handlers may still send messages in a unit of work."""
        for direct in self._directs.values():
            if direct.unit == unit:
                return not direct.committing
        return self._units.is_open(unit)

    def returned_directly(self, direct: FastPathUnit) -> bool:
        """Record that the handler of a unit on the fast path has returned.

        Returns:
            Whether the driver must commit the unit now. `False` if the unit has left the fast path: the
            driver then sends `HandlerReturned`.
        """
        if self._directs.get(direct.message_id) is not direct:
            return False
        direct.committing = True
        return True

    def committed_directly(self, direct: FastPathUnit) -> bool:
        """Record the commit of a unit on the fast path.

        Returns:
            Whether the unit has ended. `False` if it has left the fast path: the driver then sends
            `UnitCommitted`.
        """
        if self._directs.get(direct.message_id) is not direct:
            return False
        del self._directs[direct.message_id]
        if self._failing:
            self._failing.clear()
        return True

    def _log(self, level: LogLevel, text: str) -> None:
        self._decide(Log(level=level, text=text))

    def _state_set(self, event: StateSet) -> None:
        if (key := self._units.key_of(event.call)) is not None:
            self._tracker.note(key, rollback_data=event.rollback_data, handling=event.handling)

    def _tick(self, _event: Tick) -> None:
        for kind, owner in self._timers.take_due():
            match kind:
                case TimerKind.CONNECT:
                    self.state = ActivationState.CONNECTING
                    self._decide(Connect())
                case TimerKind.STOP:
                    self._log(
                        LogLevel.WARNING,
                        "stopping without waiting any longer for handlers that still run; their messages "
                        "will be redelivered",
                    )
                    self._left_alone = True
                    self._units.abandon()
                case _:
                    self._units.timer(kind, owner)

    # -- connection ---------------------------------------------------------------------------------------

    def _start(self, _event: Start) -> None:
        if not self._running:
            self._running = True
            self._left_alone = False
            self._stop = None
            self._gate.stopping = False
            self._outage.over()
            self.state = ActivationState.CONNECTING
            self._decide(Connect())

    def _connection_up(self, _event: ConnectionOpened) -> None:
        if not self._running or self._stop is not None:
            self._decide(CloseConnection())
            return
        self._connected = True
        if self.suspended:  # nothing is subscribed until it is resumed
            self.state = ActivationState.UP
            self._outage.over()
        self._consume()

    def _consumer_opened(self, _event: ConsumerOpened) -> None:
        if self._gate.consuming:
            self._standby = False
            self._outage.over()
            if self._stop is None:
                self.state = ActivationState.UP

    def _consume(self) -> None:
        if self._connected and not self.suspended and self._stop is None:
            if not self._gate.consuming:
                self.state = ActivationState.CONNECTING
                self._decide(OpenConsumer())
            self._gate.consuming = True
            self._gate.open = True

    def _connect_failed(self, event: ConnectFailed) -> None:
        if not self._running or self._stop is not None:
            return
        if event.permanent:
            why = f"the broker refuses: {event.failure.message}" if event.by_broker else event.failure.message
            self._stop_asked(StopAsked(reason=why), refused=True)
            return
        if self._connected:
            self._decide(CloseConnection())
        self._disconnected()
        self._connect_later(event.failure.message, standby=event.standby, logged=event.logged)

    def _connection_lost(self, event: ConnectionLost) -> None:
        why = event.failure.message if event.failure is not None else "connection lost"
        self._lose_connection(why, logged=event.logged)

    def _lose_connection(self, why: str, *, logged: bool) -> None:
        if not self._connected:
            return
        self._disconnected()
        if self._stop is None:
            self._outage.began()
            self._connect_later(why, logged=logged)

    def _reconnect(self, event: ReconnectAsked) -> None:
        if self._connected:
            self._decide(CloseConnection())
        self._lose_connection(event.reason, logged=event.logged)

    def _disconnected(self) -> None:
        self._connected = self._gate.consuming = self._gate.open = False
        self._units.connection_lost()

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

    def _suspend(self, _event: SuspendAsked) -> None:
        self.suspended = True
        self._gate.open = False
        self._units.interrupt()

    def _resume(self, _event: ResumeAsked) -> None:
        self.suspended = False
        self._consume()

    def _stop_asked(self, event: StopAsked, *, refused: bool = False) -> None:
        if not self._running:
            return
        if self._stop is not None:
            self._timers.hasten(TimerKind.STOP, 0, event.within)
            return
        self._stop = event
        level = LogLevel.WARNING if event.by_handler else LogLevel.INFO
        self._log(LogLevel.ERROR if refused else level, f"message delivery stops: {event.reason}")
        self.state = ActivationState.DISCONNECTING
        self._timers.due.pop((TimerKind.CONNECT, 0), None)
        self._timers.set(TimerKind.STOP, 0, event.within)
        self._gate.open = False
        self._gate.stopping = True
        self._units.interrupt()

    def _close_when_idle(self) -> None:
        if not self._units.idle:
            return
        if self._running and self._stop is not None:
            clean = self._connected and not (self._left_alone or self._units.has_begun_waiting)
            self._units.drop_waiting()
            self._timers.due.pop((TimerKind.STOP, 0), None)
            self._running = self._connected = self._gate.consuming = False
            self.state = ActivationState.DOWN
            self._decide(CloseConnection(clean=clean))
            self._decide(Stopped(reason=self._stop.reason))
        elif self.suspended and self._gate.consuming:
            self._units.drop_waiting()
            self._gate.consuming = False
            self.state = ActivationState.UP
            self._decide(CloseConsumer())
