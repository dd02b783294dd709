"""A listener over one or several connections: start, stop, drain, restart, reports, JMSJCA's MBean."""

from __future__ import annotations

import functools
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Protocol, TypeAlias

from airflow_provider_jmsjca.core.delivery.concurrency import ConcurrencyLimit
from airflow_provider_jmsjca.core.delivery.events import StopAsked
from airflow_provider_jmsjca.core.delivery.outage import ActivationState
from airflow_provider_jmsjca.engine.activations import management
from airflow_provider_jmsjca.engine.activations.limits import (
    FAILURE_TIMEOUT,
    STOP_WITHIN,
    TICK_SECONDS,
    FailureStreak,
    RunLimits,
    Seconds,
    duration,
    optional_duration,
    run_report,
)
from airflow_provider_jmsjca.engine.activations.run import Connections, ListenerRun, RunSettings
from airflow_provider_jmsjca.engine.collecting.batch_spec import EndReason
from airflow_provider_jmsjca.engine.delivering.statistics import Counts, Statistics, total
from airflow_provider_jmsjca.engine.delivering.threaded.workers import Handler
from airflow_provider_jmsjca.errors import ConfigurationError, JmsError
from airflow_provider_jmsjca.logs import safe_logger

_log = safe_logger("airflow_provider_jmsjca.listener")

Progress: TypeAlias = Callable[[Counts], object]


class StopSignal(Protocol):
    """Signal that stops a run, for example a `threading.Event`."""

    def is_set(self) -> bool:
        """Return whether the run is to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMonitor:
    """Watches a run until its end, then stops it.

    Attributes:
        run_ends: Bounds that end the run.
        stop: Ends the run when it is set; `None`: no signal.
        within: Time that running handlers get at the end.
        within_if_stopped: Upper bound of `within` if `stop` is set; `None`: no upper bound.
        progress: Called with the counts at regular intervals; `None`: never.
        progress_every: Interval between two calls of `progress`.
        clock: Monotonic seconds; the clock of the watched activation.
    """

    run_ends: RunLimits
    stop: StopSignal | None
    within: timedelta
    within_if_stopped: timedelta | None
    progress: Progress | None
    progress_every: timedelta
    clock: Callable[[], float]

    def until_end(self, running: Listener) -> tuple[EndReason, str] | None:
        """Return why the run ends, with a description; `None` if the activation stopped first."""
        began = idle_since = self.clock()
        failing = FailureStreak(running.settings.delivery, began)
        next_progress = began + self.progress_every.total_seconds()
        while not running.await_end(TICK_SECONDS) and not self._broken_off:
            now = self.clock()
            if self.progress is not None and now >= next_progress:
                next_progress = now + self.progress_every.total_seconds()
                self.progress(running.counts)
            counts = running.counts
            quiet = running.idle_since()
            idle_since = now if quiet is None else max(idle_since, quiet)
            found = self.run_ends.end_reason(
                settled=counts.settled,
                elapsed=now - began,
                idle=now - idle_since,
                failing=failing.seconds(counts, now, lambda: running.failing),
                blocked=running.blocked,
            )
            if found is not None and not (found[0] is EndReason.IDLE and running.is_checking_backlog):
                return found
        return None

    def end(self, running: Listener, found: tuple[EndReason, str] | None) -> EndReason:
        """Stop the activation, wait until it has stopped, and return why it ended.

        Args:
            running: The activation. If `stop` is set during the wait, `within_if_stopped` applies.
            found: Result of `until_end`.
        """
        ended_by, reason = found or (EndReason.STOPPED, "told to stop")
        over = False
        if not self._broken_off:
            running.request_stop(self.within, reason=reason, delete_durable=found is not None)
            over = self._is_over(running, self.within, unless_broken_off=True)
        if self._broken_off and not over:
            within = min(self.within, self.within_if_stopped or self.within)
            running.request_stop(within, reason=reason, delete_durable=False)
            # Wait for all of `within`, because the connection is closed only after running calls are
            # abandoned.
            self._is_over(running, self.within)
        return ended_by

    @property
    def _broken_off(self) -> bool:
        return self.stop is not None and self.stop.is_set()

    def _is_over(self, running: Listener, within: timedelta, *, unless_broken_off: bool = False) -> bool:
        deadline = self.clock() + within.total_seconds()
        while not (running.await_stop(self.clock() + TICK_SECONDS) or running.is_closed):
            if self.clock() >= deadline or (unless_broken_off and self._broken_off):
                return False
        return True


# States by precedence: a listener has the first of these states that one of its connections has.
_STATES = (
    ActivationState.UP,
    ActivationState.CONNECTING,
    ActivationState.DISCONNECTING,
    ActivationState.DOWN,
)


class _RunConsuming(threading.Event):
    """An event that is set while one run consumes.

    The event of the listener (`event`) is set while all events in `every` are set.

    Args:
        event: The listener's event.
        every: Events of the listener's runs; the new event is appended to this list.
    """

    _lock = threading.Lock()

    def __init__(self, event: threading.Event, every: list[threading.Event]) -> None:
        super().__init__()
        self._event = event
        self._every = every
        every.append(self)

    def set(self) -> None:
        super().set()
        self._update()

    def clear(self) -> None:
        super().clear()
        self._update()

    def _update(self) -> None:
        with self._lock:
            if all(each.is_set() for each in self._every):
                self._event.set()
            else:
                self._event.clear()


class Listener:
    """Consumes over one or several connections, which start and stop together.

    Concurrency and bounds apply to all connections together: in serial mode one handler runs at a time.
    Connections with a backlog take turns.

    Guarantee: a message is settled only after its handler has returned, or when the redelivery handling moves
    or deletes it. A crash of either side before that leads to a redelivery. A crash between a handler's
    return and the broker's confirmation delivers the message once more. In-flight messages of a lost
    connection are redelivered over the next one.

    Every method may be called from any thread, but not from a signal handler.

    Args:
        connections: Result of `one_connection`, `every_member` or `shared_subscription`.
        handler: Called with each message, in a thread of its connection's pool.
        clock: Monotonic seconds.
        chance: Returns a random number, 0 up to but not including 1.

    Attributes:
        settings: Settings of the listener.
        runs: The runs, one for each connection. Those whose messages the handler gets come first.
        consuming: Event to wait for. It is set while the broker, or every member, has confirmed the
            subscriptions: messages published from then on arrive. It is cleared when a connection is lost, by
            `suspend` and by `stop`. With several destinations, it doesn't wait for refused ones. Read-only.
        ended_by: Why the last `run` ended; `STOPPED` also when the handler stopped the listener.
        missing: Members that weren't up when the last `run` ended; their messages stay at the broker. `None`:
            there are no members, or there was no run.
        member_names: Members of the cluster with a connection each; empty with a single connection.
        watchable: Whether another component may check the destinations for waiting messages while the
            listener is stopped. `False` with a shared subscription, where messages don't wait on a queue.

    Raises:
        ConfigurationError: Attempts are to be recorded, and there is no store; or the handler isn't a plain
            function: the body of an asynchronous function or a generator would never run.

    Source: J9, J10, J12, J13, J81-J84, J116-J122, J131, J204-J211, W12, W15, W17, W24-W27, W33, W46.
    """

    def __init__(
        self,
        connections: Connections,
        handler: Handler,
        *,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.settings = connections.settings
        self.member_names = connections.member_names
        self.watchable = connections.mover is None
        self.consuming = threading.Event()
        self.ended_by: EndReason | None = None
        self.missing: tuple[str, ...] | None = None
        self._clock = clock
        self._lock = threading.Lock()
        self._concurrency_limit: ConcurrencyLimit | None = None
        every: list[threading.Event] = []

        def new_dispatcher(
            own: RunSettings, consuming: threading.Event, gives_up: Callable[[], bool]
        ) -> ListenerRun:
            return ListenerRun(
                own,
                handler,
                clock=clock,
                chance=chance,
                gives_up=gives_up,
                on_stop=functools.partial(self._stop_others, own),
                consuming=consuming,
            )

        self._consumers = tuple(
            new_dispatcher(each, _RunConsuming(self.consuming, every), self._all_refuse)
            for each in connections.consumers
        )
        mover = connections.mover
        self._mover = None if mover is None else new_dispatcher(mover, threading.Event(), lambda: True)
        self.runs = self._consumers if self._mover is None else (*self._consumers, self._mover)

    def _all_refuse(self) -> bool:
        return all(each.refusal is not None for each in self._consumers)

    def _stop_others(self, own: RunSettings, request: StopAsked) -> None:
        request = replace(request, by_handler=False)
        with self._lock:  # held during a start too, so that every run has started and can be stopped
            for each in self.runs:
                if each.own is not own:
                    each.request_stop(request, delete_durable=False)

    # -- state --------------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether the listener was started and hasn't stopped."""
        return any(each.running for each in self.runs)

    @property
    def stopping(self) -> bool:
        """Whether a stop is under way."""
        return any(each.stopping for each in self.runs)

    @property
    def ready(self) -> bool:
        """Whether the listener consumes; with members: at least one consumes, and each was tried."""
        return all(each.answered for each in self.runs) and any(each.ready for each in self._consumers)

    @property
    def state(self) -> ActivationState:
        """Up, Down, Connecting or Disconnecting; with several members, Up if one is up."""  # J119
        found = {each.state for each in self._consumers}
        return next(state for state in _STATES if state in found)

    @property
    def states(self) -> dict[str, ActivationState]:
        """The state of each connection, by the name of its activation or member."""  # J119
        return {each.name: each.state for each in self.runs}

    @property
    def down(self) -> tuple[str, ...]:
        """The members that aren't up; empty if there are no members."""
        states = self.states
        return tuple(name for name in self.member_names if states[name] is not ActivationState.UP)

    @property
    def suspended(self) -> bool:
        """Whether delivery is suspended by hand, or will be at the next start."""
        return any(each.suspended for each in self.runs)

    @property
    def server_type(self) -> str:
        """Product name of the broker; empty before a connection, and during a reconnect.

        With several members, the names of different products are separated by commas.
        """
        return ",".join(
            dict.fromkeys(each.server_type for each in self._consumers if each.server_type)
        )  # J115

    @property
    def server(self) -> tuple[str, str]:
        """Host and port of the broker; empty before a connection, and during a reconnect.

        With several members, each text holds the values of all connected members, separated by commas.
        """
        found = [each.server for each in self._consumers if each.server_type]  # J120
        return ",".join(host for host, _ in found), ",".join(port for _, port in found)

    @property
    def counts(self) -> Counts:
        """Counts of messages since the last start."""
        return sum((each.counts for each in self._consumers), Counts())

    @property
    def failing(self) -> int | None:
        """Number of messages that failed since any message was last settled, or delivered for the first time.

        `None`: not known yet, because a handler is processing a message that hasn't failed so far.
        """
        found = [each.failing for each in self._consumers]
        return None if None in found else sum(each or 0 for each in found)

    @property
    def stop_reason(self) -> str:
        """Why the listener stopped; empty until it has stopped."""
        return next((each.stop_reason for each in self._consumers if each.stop_reason), "")

    @property
    def fault(self) -> JmsError | None:
        """The fault that stopped the listener; `None` if no fault stopped it.

        With a shared subscription, a fault of the connection that moves its messages takes precedence.
        """
        mover = () if self._mover is None else (self._mover,)
        return next((each.fault for each in (*mover, *self._consumers) if each.fault is not None), None)

    @property
    def is_closed(self) -> bool:
        """Whether the listener has stopped and its connections are closed.

        Abandoned handler calls may still be running then.
        """
        return all(each.is_closed for each in self.runs)

    @property
    def is_checking_backlog(self) -> bool:
        """Whether a check for messages that stay at the broker is running; no run ends as idle during it."""
        return any(each.is_checking_backlog for each in self._consumers)

    @property
    def blocked(self) -> bool:
        """Whether messages may be waiting at the broker although none arrives.

        During a memory or disk alarm RabbitMQ answers nothing on a connection. After a reconnection,
        RabbitMQ may still hold the messages that it sent over the earlier connection.
        """
        return any(each.blocked for each in self.runs)

    @property
    def in_handler(self) -> bool:
        """Whether the caller is a handler of this listener."""
        return any(each.in_handler for each in self.runs)

    def is_idle(self) -> bool:
        """Return whether no message is in flight; while suspended, whether no handler is running."""
        return all(each.is_idle() for each in self.runs)

    def idle_since(self) -> float | None:
        """Return the time of the last activity, on the clock; `None` while active or not connected."""
        if len(self._consumers) == 1:
            return self._consumers[0].idle_since()
        if not all(each.answered and each.is_idle() for each in self._consumers):
            return None
        quiet: list[float] = []
        for each in self._consumers:
            since = each.idle_since()
            if since is not None:
                quiet.append(since)
            elif each.opening or each.state is ActivationState.UP:
                return None  # this connection is new, and its messages may be about to arrive
        return max(quiet, default=None)

    # -- reports ------------------------------------------------------------------------------------------

    def statistics(self) -> Statistics:
        """Return a snapshot of the statistics; with several members, the totals (`statistics.total`)."""
        # J117, J121, J209
        if self.member_names:
            return total(self.statistics_by_part(), most=self.settings.delivery.concurrency)
        found = self._consumers[0].statistics()
        if self._mover is None:
            return found
        return replace(found, holds_subscription=self._mover.state is ActivationState.UP)

    def statistics_by_part(self) -> dict[str, Statistics]:
        """Return a snapshot of the statistics of each connection, by the name of its activation or member."""
        return {each.name: each.statistics() for each in self.runs}

    def reset_statistics(self) -> None:
        """Reset `statistics`, but not `counts`."""  # J120
        for each in self.runs:
            each.reset_statistics()

    def report(self, so_far: Counts | None = None, ended_by: EndReason | None = None) -> dict[str, Any]:
        """Return the report of the last run, with JSON values only: counts, end, and reason of a stop.

        Args:
            so_far: Counts of earlier runs, which are added.
            ended_by: Why the run ended; `None`: the value of `self.ended_by`.
        """
        besides: dict[str, object] = {} if self.missing is None else {"members_down": list(self.missing)}
        if self._mover is not None:
            besides["moved_to_queue"] = self._mover.counts.committed
        return run_report(
            (so_far or Counts()) + self.counts, ended_by or self.ended_by, self.stop_reason, **besides
        )

    def attributes(self) -> dict[str, object]:
        """Return the activation's attributes under the names of JMSJCA's MBean.

        With members, `Members` holds the state of each.
        """  # J117
        found = management.attributes(self)
        if self.member_names:
            found["Members"] = {name: str(state) for name, state in self.states.items()}
        return found

    def operate(self, name: str) -> object:
        """Perform an operation of JMSJCA's MBean, such as `getStatus`."""  # J116, J118, J120
        return management.operate(self, name)

    # -- start and stop -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Start consuming and return at once, even while the broker is down.

        Later failures are not raised: if the broker refuses permanently, the activation ends with an ERROR
        in the log. `state`, `fault` and `statistics().refused` show the failure. `run` raises it instead.

        Starting twice is harmless. After a stop, the activation starts again; if a stop is under way, the
        call waits for its end. Handlers run in the context (`contextvars`) of the caller.

        Raises:
            ConfigurationError: A handler calls this while a stop is under way, and would wait for itself.
        """
        self._begin(None, timedelta(seconds=STOP_WITHIN))

    def _begin(self, limit: int | None, stop_within: timedelta) -> None:
        while self.stopping:
            self.refuse_in_handler("start")
            time.sleep(TICK_SECONDS)
        self.begin(limit, stop_within=stop_within)

    def begin(
        self, limit: int | None = None, *, stop_within: timedelta = timedelta(seconds=STOP_WITHIN)
    ) -> None:
        """Start like `start`, with an optional limit; call it only when no stop is under way.

        Connections whose runs haven't stopped continue with these runs.

        Args:
            limit: Settle at most this many messages; `None`: no limit.
            stop_within: Time that running handlers get when one of them requests a stop.

        Raises:
            ConfigurationError: The activation is already running, and a limit is given.
        """
        with self._lock:
            running = any(each.running for each in self._consumers)
            if running and limit is not None:
                raise ConfigurationError(
                    f"{self.settings.name} is already running; stop it before running it with a limit"
                )
            if len(self._consumers) > 1:
                if self._concurrency_limit is None or not running:
                    places = self.settings.delivery.concurrency
                    self._concurrency_limit = ConcurrencyLimit(places, limit, lock=threading.Lock())
                limit = None
            for each in self._consumers:
                each.begin(limit, stop_within=stop_within, room=self._concurrency_limit)
            if self._mover is not None:
                self._mover.begin(stop_within=stop_within)

    def suspend(self) -> None:
        """Suspend delivery until `resume`: running handlers finish, other messages return to the broker.

        Before `start` or `run`, the call suspends delivery from the start on. A stop ends the suspension.
        """
        for each in self.runs:
            each.suspend()

    def resume(self) -> None:
        """Resume delivery."""
        for each in self.runs:
            each.resume()

    def request_stop(
        self, within: Seconds = STOP_WITHIN, *, reason: str = "told to stop", delete_durable: bool = True
    ) -> None:
        """Begin to stop, and return at once.

        If a stop is under way already, the call can only shorten the time that running handlers get.

        Args:
            within: Seconds that running handlers get.
            reason: Reason for the stop, for the log.
            delete_durable: Whether the durable subscription may be deleted, if the settings say so.
        """
        request = StopAsked(reason=reason, within=duration("within", within))
        with self._lock:  # not during a start: runs that haven't started yet can't be stopped
            for each in self.runs:
                each.request_stop(request, delete_durable=delete_durable)

    def await_stop(self, deadline: float) -> bool:
        """Wait for the end of a stop, until a deadline on the clock; return whether the stop was clean.

        `False`: the deadline passed first, a handler made the call, or the stop wasn't clean (see `stop`).
        """
        ended = [each.await_stop(deadline) for each in self.runs]
        return all(ended)

    def await_end(self, seconds: float) -> bool:
        """Wait at most `seconds` for any of the `runs` to stop; return whether any run has stopped."""
        return self.runs[0].await_end(seconds) or any(each.await_end(0) for each in self.runs)

    def delete_subscription(self) -> None:
        """Delete the durable subscription and its messages, on each member. Stop the activation first.

        Raises:
            ConfigurationError: There is no durable subscription, or the activation is running.
            JmsError: The broker can't be reached, or refuses.
        """
        durable = [each for each in self.runs if each.durable]
        if not durable:
            raise ConfigurationError(f"{self.settings.name} has no durable subscription to delete")
        for each in durable:
            each.delete_subscription()

    def restart(self, within: Seconds = STOP_WITHIN) -> None:
        """Stop, wait for the end, and start again.

        Args:
            within: Seconds that running handlers get.

        Raises:
            ConfigurationError: A handler calls this, and would wait for itself.
        """  # J120
        self.refuse_in_handler("restart")
        deadline = self._clock() + duration("within", within).total_seconds()
        self.request_stop(within, reason="told to restart")
        self.await_stop(deadline)
        self.start()

    def drain(self, within: Seconds = STOP_WITHIN) -> bool:
        """Suspend delivery, and wait until running handlers have finished.

        Args:
            within: Seconds to wait at most.

        Returns:
            Whether all have finished; `False` if the time ran out first.

        Raises:
            ConfigurationError: A handler calls this, and would wait for itself.
        """
        self.refuse_in_handler("drain")
        deadline = self._clock() + duration("within", within).total_seconds()
        self.suspend()
        while not self.is_idle():
            if self._clock() >= deadline:
                return False
            self.await_end(TICK_SECONDS)
        return True

    def stop(self, within: Seconds = STOP_WITHIN, *, reason: str = "told to stop") -> bool:
        """Stop, and wait for the end; delays, backoff and connection attempts end at once.

        A durable subscription is deleted if the settings say so, the stop was clean and the connection is up.
        Otherwise it stays, with its messages. A distributed subscription always stays.

        If a handler returns in time, its delivery is committed. Otherwise the handler is abandoned, and its
        delivery is rolled back, because the connection is closed. Called in a handler, this method only
        requests the stop and returns `False`.

        Args:
            within: Seconds that running handlers get and that this call takes at most, for all members
                together.
            reason: Reason for the stop, for the log.

        Returns:
            Whether the stop was clean. `False`: a handler was abandoned, or the broker didn't confirm the
            disconnect in time.
        """
        deadline = self._clock() + duration("within", within).total_seconds()
        self.request_stop(within, reason=reason)
        clean = self.await_stop(deadline)
        if not self.in_handler:
            self._unused()
        return clean

    def _unused(self) -> None:
        """Release resources that only a running activation needs; called after a stop or a run."""

    def refuse_in_handler(self, method: str) -> None:
        """Raise `ConfigurationError` if the caller is a handler of this activation."""
        if self.in_handler:
            raise ConfigurationError(f"{method}() waits for handlers to return, so a handler can't call it")

    def run(
        self,
        *,
        max_messages: int | None = None,
        run_for: Seconds | None = None,
        idle_for: Seconds | None = None,
        failure_timeout: Seconds | None = None,
        stop: StopSignal | None = None,
        within: Seconds = STOP_WITHIN,
        within_if_stopped: Seconds | None = None,
        progress: Progress | None = None,
        progress_every: Seconds = 5.0,
    ) -> Counts:
        """Consume until a bound is reached, then stop.

        The bounds apply to the messages of all members together. For a distributed subscription they apply to
        the messages of its queue. With members, a run is idle only while at least one member is up; members
        that are down don't count. The idle time starts after every member has connected or failed once.

        Args:
            max_messages: End when this many messages are settled (committed, moved or deleted), and never
                settle more.
            run_for: End after this many seconds.
            idle_for: End when, with the connection up, no message arrived and none was in flight for this
                many seconds. If the broker failed to answer in time on an earlier connection, it may hold
                messages for that connection. While none of these is redelivered, a quiet run ends as
                `EndReason.BLOCKED`, after the longer of `idle_for` and `failure_timeout`.
            failure_timeout: End when only failures happened for this many seconds: redelivered messages
                failed repeatedly, and no message was settled. `None`: the value of `idle_for`; an hour if
                `idle_for` is `None` too.
            stop: Ends the run when it is set. A durable subscription then stays, regardless of the settings,
                and collects messages for a later run.
            within: Seconds that running handlers get at the end.
            within_if_stopped: Upper bound of `within` if `stop` is set, even if it is set only while the run
                waits for handlers at its end. `None`: no upper bound.
            progress: Called with the counts at regular intervals; `None`: never.
            progress_every: Seconds between two calls of `progress`.

        Returns:
            The counts.

        Raises:
            PermanentBrokerError: The broker refuses; with several members, all of them do.
            ConfigurationError: The settings can't work on this broker, or a bound is out of range. Or the
                activation is already running and `max_messages` is given. Or a handler calls this, and would
                wait for itself.
        """
        self.refuse_in_handler("run")
        idle, fails = (
            optional_duration("idle_for", idle_for),
            optional_duration("failure_timeout", failure_timeout),
        )
        if fails is None:
            fails = (
                idle
                if idle is not None and idle > timedelta(0)
                else duration("failure_timeout", FAILURE_TIMEOUT)
            )
        watch = RunMonitor(
            run_ends=RunLimits(
                max_messages=max_messages,
                run_for=optional_duration("run_for", run_for),
                idle_for=idle,
                failure_timeout=fails,
            ),
            stop=stop,
            within=duration("within", within),
            within_if_stopped=optional_duration("within_if_stopped", within_if_stopped),
            progress=progress,
            progress_every=duration("progress_every", progress_every),
            clock=self._clock,
        )
        self._begin(max_messages, watch.within)
        found = None
        try:
            found = watch.until_end(self)
        finally:
            self.missing = self.down if self.member_names else None
            self.ended_by = watch.end(self, found)
            self._unused()
        if self.fault is not None:
            raise self.fault
        if self.ended_by is EndReason.FAILURES and found is not None:
            _log.warning(
                "%s: the run ends: %s; these messages stay at the broker", self.settings.name, found[1]
            )
        if self.ended_by is EndReason.BLOCKED and found is not None:
            _log.warning("%s: the run ends: %s", self.settings.name, found[1])
        if found is not None and self.missing:
            _log.warning(
                "%s: not connected at the end of the run: %s; messages there were not consumed",
                self.settings.name,
                ", ".join(self.missing),
            )
        return self.counts
