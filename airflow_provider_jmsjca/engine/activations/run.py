"""One connection of a listener: its settings, and a run over it."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from airflow_provider_jmsjca.core.delivery.concurrency import ConcurrencyLimit
from airflow_provider_jmsjca.core.delivery.events import ResumeAsked, StopAsked, SuspendAsked
from airflow_provider_jmsjca.core.delivery.outage import ActivationState
from airflow_provider_jmsjca.core.redelivery import RedeliveryTracker
from airflow_provider_jmsjca.engine.activations.limits import STOP_WITHIN, TICK_SECONDS
from airflow_provider_jmsjca.engine.connecting.connector import delete_durable
from airflow_provider_jmsjca.engine.delivering.settings import ListenerSettings, plain_function
from airflow_provider_jmsjca.engine.delivering.statistics import Counts, Statistics
from airflow_provider_jmsjca.engine.delivering.threaded.dispatcher import Dispatcher
from airflow_provider_jmsjca.engine.delivering.threaded.workers import Handler
from airflow_provider_jmsjca.errors import ConfigurationError, JmsError
from airflow_provider_jmsjca.transports.base import ConnectFunction


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Settings of one run.

    Attributes:
        name: Key of the run in states and statistics: a member's host and port, or the listener's name.
        settings: Settings of the listener.
        connect: Opens one connection or raises `JmsError`, as `functools.partial(connect, settings)` does;
            called repeatedly while the broker is down.
        handler: Called with each message instead of the listener's handler; `None`: the listener's handler.
    """

    name: str
    settings: ListenerSettings
    connect: ConnectFunction
    handler: Handler | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """Connections of a listener.

    Attributes:
        settings: Settings of the whole listener.
        consumers: Connections whose messages the handler gets.
        mover: Moves messages from a shared subscription to the queue of the only consumer; `None`: there is
            no shared subscription.
        member_names: Names of the consumers, if each is a member of a cluster.
    """

    settings: ListenerSettings
    consumers: tuple[RunSettings, ...]
    mover: RunSettings | None = None
    member_names: tuple[str, ...] = ()


def one_connection(settings: ListenerSettings, connect: ConnectFunction) -> Connections:
    """Return the connections of a listener with a single connection."""
    only = RunSettings(name=settings.name, settings=settings, connect=connect)
    return Connections(settings=settings, consumers=(only,))


class ListenerRun:
    """Consumption of one or several destinations of a broker over one connection.

    Attempt counts last as long as this object, or as long as the store keeps them.

    Args:
        own: The settings of the run.
        handler: Called with each message, in a thread of the pool.
        clock: Monotonic seconds.
        chance: Returns a random number, 0 up to but not including 1.
        gives_up: Called when the broker refuses permanently; returns whether to stop. Otherwise the run
            retries.
        on_stop: Called when the handler requests a stop, in the handler's thread.
        consuming: Event that is set while the broker has confirmed the subscriptions.

    Attributes:
        own: The settings of the run; its `name` and `settings` are attributes of the run, too.

    Raises:
        ConfigurationError: Attempts are to be recorded, and there is no store; or the handler isn't a plain
            function: the body of an asynchronous function or a generator would never run.
    """

    def __init__(
        self,
        own: RunSettings,
        handler: Handler,
        *,
        clock: Callable[[], float],
        chance: Callable[[], float],
        gives_up: Callable[[], bool],
        on_stop: Callable[[StopAsked], object],
        consuming: threading.Event,
    ) -> None:
        self.own, self.name, self.settings = own, own.name, own.settings
        if self.settings.delivery.record_attempts and self.settings.store is None:
            raise ConfigurationError(
                "record_attempts is on, but there is no store to record attempts in; pass one in the "
                "argument store"
            )
        self._connect = own.connect
        self._clock = clock
        self._consuming = consuming
        self._make_dispatcher = functools.partial(
            Dispatcher,
            self.settings,
            own.connect,
            plain_function("the handler", own.handler or handler),
            RedeliveryTracker(),
            clock=clock,
            consuming=consuming,
            chance=chance,
            gives_up=gives_up,
            on_stop=on_stop,
            stop_within=timedelta(seconds=STOP_WITHIN),
        )
        self._lock = threading.Lock()
        self._dispatcher = self._make_dispatcher()
        self._started = False
        self._starts_suspended = False

    @property
    def running(self) -> bool:
        """Whether the run was started and hasn't stopped."""
        return self._started and not self._dispatcher.stopped.is_set()

    @property
    def stopping(self) -> bool:
        """Whether a stop is under way."""
        return self.running and self._dispatcher.machine.stopping

    @property
    def ready(self) -> bool:
        """Whether the broker has confirmed the subscriptions."""
        return self._consuming.is_set()

    @property
    def server_type(self) -> str:
        """Product name of the broker; empty before a connection, and during a reconnect."""
        return self._dispatcher.link.server_type

    @property
    def server(self) -> tuple[str, str]:
        """Host and port of the broker; empty before a connection, and during a reconnect."""
        host, _, port = self._dispatcher.link.address.rpartition(":")
        return (host, port) if host else (port, "")

    @property
    def state(self) -> ActivationState:
        """Up, Down, Connecting or Disconnecting."""
        return self._dispatcher.machine.state

    @property
    def suspended(self) -> bool:
        """Whether delivery is suspended by hand, or will be at the next start."""
        return self._dispatcher.machine.suspended if self.running else self._starts_suspended

    @property
    def counts(self) -> Counts:
        """Message counts since the last start."""
        return self._dispatcher.counters.counts()

    @property
    def failing(self) -> int | None:
        """Number of failing messages; see `Listener.failing`."""
        dispatcher = self._dispatcher
        with dispatcher.lock:
            return dispatcher.machine.failing

    @property
    def fault(self) -> JmsError | None:
        """The fault that stopped the run; `None` if there was none."""
        return self._dispatcher.fault

    @property
    def refusal(self) -> JmsError | None:
        """The broker's permanent refusal, if one is known; `None` otherwise."""
        return self._dispatcher.refusal

    @property
    def answered(self) -> bool:
        """Whether the first attempt to connect and subscribe since the start has succeeded or failed."""
        return self._dispatcher.answered

    @property
    def opening(self) -> bool:
        """Whether there is a connection, but the broker hasn't confirmed the subscriptions yet."""
        return self._dispatcher.machine.opening

    @property
    def stop_reason(self) -> str:
        """Why the run stopped; empty until it has stopped."""
        return self._dispatcher.stop_reason

    @property
    def in_handler(self) -> bool:
        """Whether the caller is the handler of this run."""
        return self._dispatcher.workers.are_here

    @property
    def is_closed(self) -> bool:
        """Whether the run has stopped and its connection is closed; see `Listener.is_closed`."""
        return self._dispatcher.stopped.is_set() and self._dispatcher.link.closed.is_set()

    @property
    def is_checking_backlog(self) -> bool:
        """Whether a check for messages that stay at the broker is running."""
        return self._dispatcher.link.is_checking_backlog

    @property
    def blocked(self) -> bool:
        """Whether the broker may hold messages for an earlier connection, on which it did not answer."""
        return self._dispatcher.receiver.blocked

    @property
    def durable(self) -> bool:
        """Whether the run has a durable subscription."""
        return any(each.durable_name is not None for each in self.settings.subscriptions)

    def statistics(self) -> Statistics:
        """Return a snapshot of the run's statistics."""
        dispatcher = self._dispatcher
        with dispatcher.lock:
            return dispatcher.counters.statistics(
                threads=dispatcher.workers.size,
                in_flight=dispatcher.machine.in_flight,
                refused=dispatcher.refused,
            )

    def reset_statistics(self) -> None:
        """Reset `statistics`, but not `counts`."""
        dispatcher = self._dispatcher
        with dispatcher.lock:
            dispatcher.counters.reset(self._clock())

    def delete_subscription(self) -> None:
        """Delete the durable subscriptions; see `Listener.delete_subscription`."""
        if self.running:
            raise ConfigurationError(
                f"{self.settings.name} is running; stop it before deleting its subscription"
            )
        for each in self.settings.subscriptions:
            if each.durable_name is not None:
                delete_durable(self._connect, each.durable_name, each.destination)

    def begin(
        self,
        limit: int | None = None,
        *,
        stop_within: timedelta = timedelta(seconds=STOP_WITHIN),
        room: ConcurrencyLimit | None = None,
    ) -> None:
        """Start, unless the run is running; call it only when no stop is under way.

        Args:
            limit: Settle at most this many messages; `None`: no limit.
            stop_within: Time that running handlers get when one of them requests a stop.
            room: Concurrency limit shared with other runs, instead of `limit`; must be thread-safe.
        """
        with self._lock:
            if self.running:
                return
            self._dispatcher.abandon_received()  # unread messages of the last run don't count as attempts
            self._dispatcher = self._make_dispatcher(
                limit=limit,
                room=room,
                stop_within=stop_within,
                calls_before=self._dispatcher.counters.calls,
            )
            self._started = True
            self._dispatcher.start(suspended=self._starts_suspended)  # under the lock: a stop comes later
            self._starts_suspended = False

    def suspend(self) -> None:
        """Suspend delivery; see `Listener.suspend`."""
        self._suspend(SuspendAsked())

    def resume(self) -> None:
        """Resume delivery."""
        self._suspend(ResumeAsked())

    def _suspend(self, request: SuspendAsked | ResumeAsked) -> None:
        with self._lock:
            if not self.running:
                self._starts_suspended = isinstance(request, SuspendAsked)
                return
            dispatcher = self._dispatcher
        dispatcher.feed(request)

    def request_stop(self, request: StopAsked, *, delete_durable: bool) -> None:
        """Begin to stop and return at once; see `Listener.request_stop`."""
        with self._lock:
            dispatcher = self._dispatcher if self._started else None
        if dispatcher is not None:
            dispatcher.ask_stop(request, delete_durable=delete_durable)

    def await_stop(self, deadline: float) -> bool:
        """Wait for the end of a stop, until a deadline; see `Listener.await_stop`."""
        if not self._started:
            return True
        dispatcher = self._dispatcher
        if dispatcher.workers.are_here:
            return False
        # The machine abandons handlers at the deadline; the additional time lets it report that.
        ended = dispatcher.stopped.wait(max(0.0, deadline - self._clock()) + 2 * TICK_SECONDS)
        left_alone = dispatcher.counters.active
        closed = dispatcher.link.closed.wait(max(0.0, deadline - self._clock()))
        return ended and closed and not left_alone

    def await_end(self, seconds: float) -> bool:
        """Wait at most `seconds` for the run to stop; return whether it has stopped."""
        return self._dispatcher.stopped.wait(seconds)

    def idle_since(self) -> float | None:
        """Return the time of the last activity, on the clock; `None` while active or not connected."""
        dispatcher = self._dispatcher
        consuming = dispatcher.machine.suspended or dispatcher.receiver.buffer.ready
        quiet = consuming and self.state is ActivationState.UP and self.is_idle()
        return dispatcher.last_activity if quiet else None

    def is_idle(self) -> bool:
        """Return whether no message is in flight; while suspended, whether no handler is running."""
        dispatcher = self._dispatcher
        with dispatcher.lock:
            return dispatcher.machine.idle and (
                dispatcher.machine.in_flight == 0 or dispatcher.machine.suspended
            )
