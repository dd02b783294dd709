"""An activation on one connection; it may consume several destinations of one broker."""

from __future__ import annotations

import functools
import random
import threading
import time
from collections.abc import Callable
from datetime import timedelta

from airflow_provider_jmsjca.core.delivery.concurrency import ConcurrencyLimit
from airflow_provider_jmsjca.core.delivery.events import ResumeAsked, StopAsked, SuspendAsked
from airflow_provider_jmsjca.core.delivery.outage import ActivationState
from airflow_provider_jmsjca.core.redelivery import RedeliveryTracker
from airflow_provider_jmsjca.engine.activations.base import (
    STOP_WITHIN,
    TICK_SECONDS,
    ActivationBase,
    Seconds,
    duration,
)
from airflow_provider_jmsjca.engine.connecting.connector import delete_durable
from airflow_provider_jmsjca.engine.delivering.settings import ListenerSettings, plain_function
from airflow_provider_jmsjca.engine.delivering.statistics import Counts, Statistics
from airflow_provider_jmsjca.engine.delivering.threaded.dispatcher import Dispatcher
from airflow_provider_jmsjca.engine.delivering.threaded.workers import Handler
from airflow_provider_jmsjca.errors import ConfigurationError, JmsError
from airflow_provider_jmsjca.transports.base import ConnectFunction


class PlainActivation(ActivationBase):
    """One running consumption of a destination, over one connection.

    Guarantee: a message is settled only after its handler has returned, or when the redelivery handling
    explicitly says so; a crash of either side before that redelivers it. A crash between a handler's return
    and the broker's confirmation delivers it once more. Attempt counts last as long as this object (J131).

    Args:
        settings: How to consume; `listener_settings` reads them from a spec.
        connect: Opens one connection or raises `JmsError`, as `functools.partial(connect, settings)` does;
            called repeatedly while the broker is down.
        handler: Called with each message, in a thread of the pool.
        clock: Monotonic seconds.
        chance: A random number, 0 up to but not including 1.
        gives_up: Called when the broker refuses permanently; returns whether to stop. Otherwise the
            activation tries again.
        on_stop: Called when the handler requests a stop, in its thread.
        consuming: The event for the attribute.

    Raises:
        ConfigurationError: Attempts are to be recorded, and there is no store; or the handler isn't a plain
            function: the body of an asynchronous function or a generator would never run.

    Source: J9, J10, J12, J13, J81-J84, J116-J122, W15, W24-W27, W33.
    """

    def __init__(
        self,
        settings: ListenerSettings,
        connect: ConnectFunction,
        handler: Handler,
        *,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
        gives_up: Callable[[], bool] = lambda: True,
        on_stop: Callable[[StopAsked], object] = lambda _: None,
        consuming: threading.Event | None = None,
    ) -> None:
        if settings.delivery.record_attempts and settings.store is None:
            raise ConfigurationError("record_attempts is on, and there is no store to record them in")
        super().__init__(settings, clock, consuming or threading.Event())
        self._connect = connect
        self._make_dispatcher = functools.partial(
            Dispatcher,
            settings,
            connect,
            plain_function("the handler", handler),
            RedeliveryTracker(),
            clock=clock,
            consuming=self.consuming,
            chance=chance,
            gives_up=gives_up,
            on_stop=on_stop,
            stop_within=timedelta(seconds=STOP_WITHIN),
        )
        self._lock = threading.Lock()
        self._dispatcher = self._make_dispatcher()
        self._started = False

    @property
    def running(self) -> bool:
        """Whether the activation was started and hasn't stopped."""
        return self._started and not self._dispatcher.stopped.is_set()

    @property
    def stopping(self) -> bool:
        """Whether a stop is under way."""
        return self.running and self._dispatcher.machine.stopping

    @property
    def server_type(self) -> str:
        """Product name of the broker; empty until the first connection. Source: J115."""
        return self._dispatcher.link.server_type

    @property
    def server(self) -> tuple[str, str]:
        """Host and port of the connection; empty until the first one. Source: J120."""
        host, _, port = self._dispatcher.link.address.rpartition(":")
        return (host, port) if host else (port, "")

    @property
    def state(self) -> ActivationState:
        """Up, Down, Connecting or Disconnecting. Source: J119."""
        return self._dispatcher.machine.state

    @property
    def suspended(self) -> bool:
        """Whether delivery is suspended by hand."""
        return self._dispatcher.machine.suspended

    @property
    def counts(self) -> Counts:
        """Message counts since the last start."""
        return self._dispatcher.counters.counts()

    @property
    def failing(self) -> int | None:
        """Number of messages that failed since anything else happened; see `ActivationBase.failing`."""
        dispatcher = self._dispatcher
        with dispatcher.lock:
            return dispatcher.machine.failing

    @property
    def fault(self) -> JmsError | None:
        """The fault that stopped the activation; `None` if there was none."""
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
        """Why the activation stopped; empty until it has stopped."""
        return self._dispatcher.stop_reason

    def statistics(self) -> Statistics:
        """Return a snapshot of the activation. Source: J117, J121."""
        dispatcher = self._dispatcher
        with dispatcher.lock:
            return dispatcher.counters.statistics(
                threads=dispatcher.workers.size,
                in_flight=dispatcher.machine.in_flight,
                refused=dispatcher.refused,
            )

    def statistics_by_part(self) -> dict[str, Statistics]:
        """Return `statistics` by the activation's name."""
        return {self.settings.name: self.statistics()}

    def reset_statistics(self) -> None:
        """Reset `statistics`; `counts` continue. Source: J120."""
        dispatcher = self._dispatcher
        with dispatcher.lock:
            dispatcher.counters.reset(self._clock())

    def delete_subscription(self) -> None:
        """Delete the durable subscription; see `ActivationBase.delete_subscription`."""
        durable = [each for each in self.settings.subscriptions if each.durable_name is not None]
        if not durable:
            raise ConfigurationError(f"{self.settings.name} has no durable subscription to delete")
        if self.running:
            raise ConfigurationError(f"{self.settings.name} runs; stop it before its subscription is deleted")
        for each in durable:
            delete_durable(self._connect, each.durable_name or "", each.destination)

    def begin(
        self,
        limit: int | None = None,
        *,
        stop_within: timedelta = timedelta(seconds=STOP_WITHIN),
        room: ConcurrencyLimit | None = None,
    ) -> None:
        """Start like `start`, within bounds; call it only when no stop is under way.

        Args:
            limit: Settle at most this many messages; `None`: no limit.
            stop_within: Time that running handlers get when one of them requests a stop.
            room: Concurrency limit shared with other activations, instead of `limit`; must be thread-safe.

        Raises:
            ConfigurationError: The activation is already running, and a limit is given.
        """
        with self._lock:
            if self.running:
                if limit is not None:
                    raise ConfigurationError(
                        f"{self.settings.name} runs already; stop it, to let it run with a limit"
                    )
                return
            self._dispatcher.abandon_received()  # messages it left unread don't count as attempts
            self._dispatcher = self._make_dispatcher(
                limit=limit,
                room=room,
                stop_within=stop_within,
                calls_before=self._dispatcher.counters.calls,
            )
            self._started = True
            self._dispatcher.start()  # before a stop can be requested

    def suspend(self) -> None:
        """Suspend delivery until `resume`: running handlers finish, other messages return to the broker."""
        self._dispatcher.feed(SuspendAsked())

    def resume(self) -> None:
        """Resume delivery."""
        self._dispatcher.feed(ResumeAsked())

    def request_stop(
        self, within: Seconds = STOP_WITHIN, *, reason: str = "told to stop", delete_durable: bool = True
    ) -> None:
        """Begin to stop and return at once; see `ActivationBase.request_stop`."""
        asked = StopAsked(reason=reason, within=duration("within", within))
        with self._lock:
            dispatcher = self._dispatcher if self._started else None
        if dispatcher is not None:
            dispatcher.ask_stop(asked, delete_durable=delete_durable)

    def await_stop(self, deadline: float) -> bool:
        """Wait for the end of a stop, until the deadline on the clock; return the result of `stop`."""
        if not self._started:
            return True
        dispatcher = self._dispatcher
        if dispatcher.workers.are_here:
            return False
        # The machine gives up at the deadline itself; wait slightly longer to see it.
        ended = dispatcher.stopped.wait(max(0.0, deadline - self._clock()) + 2 * TICK_SECONDS)
        left_alone = dispatcher.counters.active
        closed = dispatcher.link.closed.wait(max(0.0, deadline - self._clock()))
        return ended and closed and not left_alone

    @property
    def in_handler(self) -> bool:
        """Whether the caller is a handler of this activation."""
        return self._dispatcher.workers.are_here

    def await_end(self, seconds: float) -> bool:
        """Wait at most `seconds`; return whether the activation has stopped by itself."""
        return self._dispatcher.stopped.wait(seconds)

    def quiet_since(self) -> float | None:
        """Return the time of the last activity, on the clock; `None` while active or not connected."""
        dispatcher = self._dispatcher
        consuming = dispatcher.machine.suspended or dispatcher.receiver.buffer.ready
        quiet = consuming and self.state is ActivationState.UP and self.is_idle()
        return dispatcher.last_activity if quiet else None

    @property
    def over(self) -> bool:
        """Whether the activation has stopped and its connection is closed, even if calls were abandoned."""
        return self._dispatcher.stopped.is_set() and self._dispatcher.link.closed.is_set()

    @property
    def looks(self) -> bool:
        """Whether a check for messages that stay at the broker is running."""
        return self._dispatcher.link.looks

    @property
    def blocked(self) -> bool:
        """Whether the broker may hold messages for an earlier connection, on which it did not answer."""
        return self._dispatcher.receiver.blocked

    def is_idle(self) -> bool:
        """Return whether no message is in flight; while suspended, whether no handler is running."""
        dispatcher = self._dispatcher
        with dispatcher.lock:
            return dispatcher.machine.idle and (
                dispatcher.machine.in_flight == 0 or dispatcher.machine.suspended
            )
