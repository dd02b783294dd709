"""Base of all kinds of activation: on one connection, on each member, on a shared subscription.

Each kind implements its start, its state and its end. Runs, stops, drains, restarts, reports and the
attributes of JMSJCA's MBean are implemented here, once.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, TypeAlias

from airflow_provider_jmsjca.core.delivery.outage import ActivationState
from airflow_provider_jmsjca.core.delivery.settings import DeliverySettings
from airflow_provider_jmsjca.engine.activations import management
from airflow_provider_jmsjca.engine.collecting.batch_spec import EndReason
from airflow_provider_jmsjca.engine.delivering.settings import ListenerSettings
from airflow_provider_jmsjca.engine.delivering.statistics import Counts, Statistics, total
from airflow_provider_jmsjca.errors import ConfigurationError, JmsError
from airflow_provider_jmsjca.logs import safe_logger

_log = safe_logger("airflow_provider_jmsjca.listener")

STOP_WITHIN = 30.0
"""Default time in seconds that running handlers get at a stop."""

FAILURE_TIMEOUT = timedelta(hours=1)
"""Default time after which a run ends that sees only failures."""

Seconds: TypeAlias = float | timedelta
"""A duration in an argument: a number of seconds, or a `timedelta`."""


def duration(name: str, value: Seconds) -> timedelta:
    """Convert a duration argument to a `timedelta`.

    Args:
        name: Name of the argument, for the error.
        value: Seconds, or a `timedelta`.

    Raises:
        ConfigurationError: The value is neither seconds nor a `timedelta`.
    """
    if isinstance(value, timedelta):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigurationError(f"{name} is {value!r}; expected a number of seconds")
    try:
        return timedelta(seconds=value)
    except (OverflowError, ValueError) as error:
        raise ConfigurationError(f"{name} is {value!r} seconds; expected less than 30,000 years") from error


def _optional(name: str, value: Seconds | None) -> timedelta | None:
    return None if value is None else duration(name, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """Bounds that end a run: the first one reached ends it; `None` is never reached.

    Attributes:
        max_messages: This many messages are settled.
        run_for: The activation has run this long.
        idle_for: No message arrived and none was in flight for this long while the broker was connected.
        failure_timeout: Only failures happened for this long: redelivered messages failed again, many times,
            and none was settled. If the broker may hold messages for a connection on which it did not
            answer: no message arrived for this long and for `idle_for`.

    Raises:
        ConfigurationError: A bound is out of range.
    """

    max_messages: int | None = None
    run_for: timedelta | None = None
    idle_for: timedelta | None = None
    failure_timeout: timedelta | None = None

    def __post_init__(self) -> None:
        faults = []
        if self.max_messages is not None and self.max_messages < 1:
            faults.append(f"max_messages is {self.max_messages}; expected at least 1")
        faults.extend(
            f"{name} is {value}; expected more than 0"
            for name, value in (
                ("run_for", self.run_for),
                ("idle_for", self.idle_for),
                ("failure_timeout", self.failure_timeout),
            )
            if value is not None and value <= timedelta(0)
        )
        if faults:
            raise ConfigurationError(faults)

    def reached(
        self, *, settled: int, elapsed: float, idle: float, failing: float, blocked: bool = False
    ) -> tuple[EndReason, str] | None:
        """Return the end that is reached and its description; `None` if none is.

        Args:
            settled: Number of settled messages.
            elapsed: Seconds since the start.
            idle: Seconds without anything to do.
            failing: Seconds with failures only, as measured by `FailureStreak`.
            blocked: Value of `ActivationBase.blocked`.
        """
        if self.max_messages is not None and settled >= self.max_messages:
            return EndReason.COUNT, f"{settled} messages are settled"
        if self.run_for is not None and elapsed >= self.run_for.total_seconds():
            return EndReason.TIME, f"it has run for {self.run_for}"
        if self.idle_for is not None and idle >= self.idle_for.total_seconds():
            if not blocked:
                return EndReason.IDLE, f"nothing came for {self.idle_for}"
            quiet = max(self.idle_for, self.failure_timeout or self.idle_for)
            if idle >= quiet.total_seconds():
                return EndReason.BLOCKED, (
                    "the broker did not answer on a connection and may hold its messages; "
                    f"nothing came for {quiet}"
                )
        if self.failure_timeout is not None and failing >= self.failure_timeout.total_seconds():
            return EndReason.FAILURES, f"the same messages failed again and again for {self.failure_timeout}"
        return None


class FailureStreak:
    """Measures how long a run has seen only failures of the same messages.

    A few failures of each message don't count: the redelivery handling may be about to move or delete it.
    Parking a message until its redelivery is no progress: the message has only failed.

    Args:
        settings: Contains the number of failures after which a message is moved or deleted.
        now: Current time, in seconds.
    """

    def __init__(self, settings: DeliverySettings, now: float) -> None:
        self._many = failures_of_each(settings)
        self._progress: tuple[int, int] | None = None
        self._failures = self._failures_before = 0
        self._since = self._last = now

    def seconds(self, counts: Counts, now: float, messages: Callable[[], int | None]) -> float:
        """Return the seconds from the last progress to the last failure; 0 after few failures.

        Args:
            counts: Message counts so far.
            now: Current time, in seconds.
            messages: Returns the number of failing messages, as `ActivationBase.failing` does. Called only
                after enough failures for one message.
        """
        progress = (counts.settled, counts.delivered - counts.redelivered)
        failures = counts.rolled_back + counts.failed
        if progress != self._progress:
            self._progress, self._failures_before, self._since = progress, failures, now
        if failures != self._failures:
            self._failures, self._last = failures, now
        found = failures - self._failures_before
        # No failing messages: something else has just happened, and the counts will show it next time.
        if found < self._many or not (failing := messages()) or found < self._many * failing:
            return 0.0
        return self._last - self._since


_FAILURES = 10


def failures_of_each(settings: DeliverySettings) -> int:
    """Return how often each message must fail before this can end a run: redelivery handling comes first."""
    actions = settings.handling.actions
    return (actions[-1].at if actions else 0) + _FAILURES


Progress: TypeAlias = Callable[[Counts], object]
TICK_SECONDS = 0.05


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
        within_if_stopped: Upper bound of that time once `stop` is set; `None`: `within`.
        progress: Called with the counts at regular intervals; `None`: never.
        progress_every: Interval between two such calls.
        clock: Monotonic seconds; the clock of the watched activation.
    """

    run_ends: RunLimits
    stop: StopSignal | None
    within: timedelta
    within_if_stopped: timedelta | None
    progress: Progress | None
    progress_every: timedelta
    clock: Callable[[], float]

    def until_end(self, running: ActivationBase) -> tuple[EndReason, str] | None:
        """Return the end that was reached and its description; `None` if the activation stopped first."""
        began = idle_since = self.clock()
        failing = FailureStreak(running.settings.delivery, began)
        next_progress = began + self.progress_every.total_seconds()
        while not running.await_end(TICK_SECONDS) and not self._broken_off:
            now = self.clock()
            if self.progress is not None and now >= next_progress:
                next_progress = now + self.progress_every.total_seconds()
                self.progress(running.counts)
            counts = running.counts
            quiet = running.quiet_since()
            idle_since = now if quiet is None else max(idle_since, quiet)
            found = self.run_ends.reached(
                settled=counts.settled,
                elapsed=now - began,
                idle=now - idle_since,
                failing=failing.seconds(counts, now, lambda: running.failing),
                blocked=running.blocked,
            )
            if found is not None and not (found[0] is EndReason.IDLE and running.looks):
                return found
        return None

    def end(self, running: ActivationBase, found: tuple[EndReason, str] | None) -> EndReason:
        """Stop the activation, wait until it has stopped, and return why it ended.

        Args:
            running: The activation. Setting `stop` while it ends shortens the wait.
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
            # Wait the full time: the connection is closed only after running calls are abandoned.
            self._is_over(running, self.within)
        return ended_by

    @property
    def _broken_off(self) -> bool:
        return self.stop is not None and self.stop.is_set()

    def _is_over(
        self, running: ActivationBase, within: timedelta, *, unless_broken_off: bool = False
    ) -> bool:
        deadline = self.clock() + within.total_seconds()
        while not (running.await_stop(self.clock() + TICK_SECONDS) or running.over):
            if self.clock() >= deadline or (unless_broken_off and self._broken_off):
                return False
        return True


def run_report(
    counts: Counts, ended_by: EndReason | None, stop_reason: str = "", **besides: object
) -> dict[str, Any]:
    """Return the report of a run, JSON only.

    Args:
        counts: Message counts of the run.
        ended_by: The end it reached; `None`: it stopped by itself.
        stop_reason: Why it stopped; included only for `EndReason.STOPPED`.
        besides: Further entries, for some kinds of activation.
    """
    report: dict[str, Any] = {**counts.as_dict(), "ended_by": str(ended_by or EndReason.STOPPED)}
    if ended_by is EndReason.STOPPED:
        report["stop_reason"] = stop_reason
    return report | besides


class ActivationBase(ABC):
    """One consumption under an activation spec; base of all kinds of activation.

    Every method may be called from any thread, but not from a signal handler.

    Args:
        settings: How it consumes.
        clock: Monotonic seconds.
        consuming: The event for the attribute.

    Attributes:
        settings: How it consumes.
        consuming: Event to wait for. It is set while the broker has confirmed the subscriptions: messages
            published from then on arrive. It is cleared when the connection is lost, by `suspend` and by
            `stop`. With several destinations, it doesn't wait for refused ones. Read-only.
        ended_by: The end that the last `run` reached; `STOPPED` also when the handler stopped the activation.
        missing: Members that weren't up when the last `run` ended; their messages are still there. `None`:
            there are no members, or there was no run.
        member_names: Members of the cluster with a connection each; empty with a single connection.
        watchable: Whether another component may check for waiting messages while the activation doesn't run.
    """

    member_names: tuple[str, ...] = ()
    watchable = True

    def __init__(
        self, settings: ListenerSettings, clock: Callable[[], float], consuming: threading.Event
    ) -> None:
        self.settings = settings
        self.consuming = consuming
        self.ended_by: EndReason | None = None
        self.missing: tuple[str, ...] | None = None
        self._clock = clock

    # -- implemented by each kind -------------------------------------------------------------------------

    @property
    @abstractmethod
    def running(self) -> bool:
        """Whether the activation was started and hasn't stopped."""

    @property
    @abstractmethod
    def stopping(self) -> bool:
        """Whether a stop is under way."""

    @property
    @abstractmethod
    def state(self) -> ActivationState:
        """Up, Down, Connecting or Disconnecting. Source: J119."""

    @property
    @abstractmethod
    def suspended(self) -> bool:
        """Whether delivery is suspended by hand."""

    @property
    @abstractmethod
    def server_type(self) -> str:
        """Product name of the broker; empty until the first connection. Source: J115."""

    @property
    @abstractmethod
    def server(self) -> tuple[str, str]:
        """Host and port of the connection; empty until the first one. Source: J120."""

    @property
    @abstractmethod
    def counts(self) -> Counts:
        """Message counts since the last start."""

    @property
    @abstractmethod
    def failing(self) -> int | None:
        """Number of messages that failed since one was settled, or delivered for the first time.

        `None`: a handler is processing a message that hasn't failed, and may still complete it.
        """

    @property
    @abstractmethod
    def stop_reason(self) -> str:
        """Why the activation stopped; empty until it has stopped."""

    @property
    @abstractmethod
    def fault(self) -> JmsError | None:
        """The fault that stopped the activation; `None` if there was none."""

    @property
    @abstractmethod
    def over(self) -> bool:
        """Whether the activation has stopped and its connection is closed, even if calls were abandoned."""

    @property
    @abstractmethod
    def looks(self) -> bool:
        """Whether a check for messages that stay at the broker is running; during it, no run ends as idle."""

    @property
    @abstractmethod
    def blocked(self) -> bool:
        """Whether the broker may hold messages for an earlier connection, on which it did not answer.

        RabbitMQ does so during a memory or disk alarm. Messages may then be waiting although none arrives.
        """

    @abstractmethod
    def statistics_by_part(self) -> dict[str, Statistics]:
        """Return a snapshot of each connection, by the name of its activation or member."""

    @abstractmethod
    def reset_statistics(self) -> None:
        """Reset `statistics`; `counts` continue. Source: J120."""

    @abstractmethod
    def suspend(self) -> None:
        """Suspend delivery until `resume`: running handlers finish, other messages return to the broker."""

    @abstractmethod
    def resume(self) -> None:
        """Resume delivery."""

    @abstractmethod
    def begin(
        self, limit: int | None = None, *, stop_within: timedelta = timedelta(seconds=STOP_WITHIN)
    ) -> None:
        """Start like `start`, within bounds; call it only when no stop is under way.

        Args:
            limit: Settle at most this many messages; `None`: no limit.
            stop_within: Time that running handlers get when one of them requests a stop.

        Raises:
            ConfigurationError: The activation is already running, and a limit is given.
        """

    @abstractmethod
    def request_stop(
        self, within: Seconds = STOP_WITHIN, *, reason: str = "told to stop", delete_durable: bool = True
    ) -> None:
        """Begin to stop and return at once; a stop under way ends sooner if this one allows less time.

        Args:
            within: Seconds that running handlers get.
            reason: For the log.
            delete_durable: Whether the durable subscription may be deleted, if the settings say so.
        """

    @abstractmethod
    def await_stop(self, deadline: float) -> bool:
        """Wait for the end of a stop, until the deadline on the clock; return the result of `stop`."""

    @abstractmethod
    def await_end(self, seconds: float) -> bool:
        """Wait at most `seconds`; return whether the activation has stopped by itself."""

    @abstractmethod
    def quiet_since(self) -> float | None:
        """Return the time of the last activity, on the clock; `None` while active or not connected."""

    @abstractmethod
    def is_idle(self) -> bool:
        """Return whether no message is in flight; while suspended, whether no handler is running."""

    @abstractmethod
    def delete_subscription(self) -> None:
        """Delete the durable subscription and its messages, on each member; the activation must not run.

        Raises:
            ConfigurationError: There is no durable subscription, or the activation is running.
            JmsError: The broker can't be reached, or refuses.
        """

    @property
    @abstractmethod
    def in_handler(self) -> bool:
        """Whether the caller is a handler of this activation."""

    # -- common to all kinds ------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether the activation consumes; with several members, one consumes and all were tried."""
        return self.consuming.is_set()

    @property
    def states(self) -> dict[str, ActivationState]:
        """The state of each connection, by the name of its activation or member. Source: J119."""
        return {self.settings.name: self.state}

    @property
    def down(self) -> tuple[str, ...]:
        """The members that aren't up; empty if there are no members."""
        return ()

    def statistics(self) -> Statistics:
        """Return a snapshot; with several members, the totals (see `statistics.total`).

        Source: J117, J121.
        """
        return total(self.statistics_by_part(), most=self.settings.delivery.concurrency)

    def report(self, so_far: Counts | None = None, ended_by: EndReason | None = None) -> dict[str, Any]:
        """Return the report of the last run, JSON only: its counts, its end, and why it stopped.

        Args:
            so_far: Counts of earlier runs that it continues.
            ended_by: The end it reached; `None`: the end that the run recorded.
        """
        return run_report(
            (so_far or Counts()) + self.counts,
            ended_by or self.ended_by,
            self.stop_reason,
            **self._report_besides(),
        )

    def _report_besides(self) -> Mapping[str, object]:
        return {} if self.missing is None else {"members_down": list(self.missing)}

    def attributes(self) -> dict[str, object]:
        """Return the activation's attributes under the names of JMSJCA's MBean. Source: J117."""
        return management.attributes(self)

    def operate(self, name: str) -> object:
        """Perform an operation of JMSJCA's MBean, such as `getStatus`. Source: J116, J118, J120."""
        return management.operate(self, name)

    def start(self) -> None:
        """Start consuming and return at once, even while the broker is down.

        Later failures are not raised: if the broker refuses permanently, the activation ends with an ERROR
        in the log. `state`, `fault` and `statistics().refused` show the failure. `run` raises it instead.

        Starting twice is harmless. After a stop, the activation starts again; if a stop is under way, this
        waits for its end. Handlers run in the context (`contextvars`) of the caller.

        Raises:
            ConfigurationError: A handler calls it while a stop is under way, and would wait for itself.
        """
        self._begin(None, timedelta(seconds=STOP_WITHIN))

    def _begin(self, limit: int | None, stop_within: timedelta) -> None:
        while self.stopping:
            self.refuse_in_handler("start")
            time.sleep(TICK_SECONDS)
        self.begin(limit, stop_within=stop_within)

    def restart(self, within: Seconds = STOP_WITHIN) -> None:
        """Stop, wait for the end, and start again.

        Args:
            within: Seconds that running handlers get.

        Raises:
            ConfigurationError: A handler calls it, and would wait for itself.

        Source: J120.
        """
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
            ConfigurationError: A handler calls it, and would wait for itself.
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
        """Stop, and wait for the end: delays, back-off and attempts to connect end at once.

        A durable subscription is deleted if the settings say so, the stop was clean and the connection is up.
        Otherwise it stays, with its messages. A distributed one always stays.

        Running handlers may return, and their deliveries are committed. A handler that doesn't return in time
        is abandoned: the connection is closed, which rolls its delivery back. Called in a handler, this only
        requests the stop and returns `False`.

        Args:
            within: Seconds that running handlers get and that this call takes at most, for all members
                together.
            reason: For the log.

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

    def _unused(self) -> None:  # noqa: B027 - most kinds have nothing to release
        """Release what serves a running activation: it was stopped, or its run has ended."""

    def refuse_in_handler(self, method: str) -> None:
        """Raise `ConfigurationError` if the caller is a handler of this activation."""
        if self.in_handler:
            raise ConfigurationError(f"{method}() waits for handlers to return; it can't be called in one")

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
        """Consume until an end is reached, then stop.

        The bounds apply to the messages of all members together; for a distributed subscription, to those of
        its queue. With members, `idle_for` needs one that is up, and ignores those that aren't. It first
        waits until every member has connected or failed once.

        Args:
            max_messages: End when this many messages are settled: committed, moved or deleted; never more.
            run_for: End after this many seconds.
            idle_for: End when, with the connection up, no message arrived and none was in flight for this
                many seconds. After the broker failed to answer in time on a connection, it may hold that
                connection's messages. Until one of them is redelivered, the run ends as
                `EndReason.BLOCKED` instead, after the longer of `idle_for` and `failure_timeout`.
            failure_timeout: End when only failures happened for this many seconds: redelivered messages
                failed repeatedly, and none was settled. `None`: `idle_for`, or an hour without it.
            stop: Ends the run when it is set. A durable subscription then stays, regardless of the settings,
                and collects messages for a later run.
            within: Seconds that running handlers get at the end.
            within_if_stopped: Upper bound of `within` once `stop` is set, also during the end; `None`: none.
            progress: Called with the counts at regular intervals; `None`: never.
            progress_every: Seconds between two such calls.

        Returns:
            The counts.

        Raises:
            PermanentBrokerError: The broker refuses; with several members, all of them do.
            ConfigurationError: The settings can't work on this broker, a bound is out of range, the
                activation is already running and `max_messages` is given, or a handler calls it and would
                wait for itself.
        """
        self.refuse_in_handler("run")
        idle, fails = _optional("idle_for", idle_for), _optional("failure_timeout", failure_timeout)
        if fails is None:
            fails = (
                idle
                if idle is not None and idle > timedelta(0)
                else duration("failure_timeout", FAILURE_TIMEOUT)
            )
        watch = RunMonitor(
            run_ends=RunLimits(
                max_messages=max_messages,
                run_for=_optional("run_for", run_for),
                idle_for=idle,
                failure_timeout=fails,
            ),
            stop=stop,
            within=duration("within", within),
            within_if_stopped=_optional("within_if_stopped", within_if_stopped),
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
            _log.warning("%s: the run ends: %s; they stay at the broker", self.settings.name, found[1])
        if self.ended_by is EndReason.BLOCKED and found is not None:
            _log.warning("%s: the run ends: %s", self.settings.name, found[1])
        if found is not None and self.missing:
            _log.warning(
                "%s: not up at the end: %s; what is there stays there",
                self.settings.name,
                ", ".join(self.missing),
            )
        return self.counts


class ActivationGroup(ActivationBase):
    """An activation composed of several others, which start and stop together.

    Args:
        settings: How it consumes.
        parts: The activations it is composed of.
        clock: Monotonic seconds.
        consuming: The event for the attribute.
    """

    def __init__(
        self,
        settings: ListenerSettings,
        parts: Iterable[ActivationBase],
        clock: Callable[[], float],
        consuming: threading.Event,
    ) -> None:
        super().__init__(settings, clock, consuming)
        self._parts = tuple(parts)
        self._lock = threading.Lock()

    @property
    def running(self) -> bool:
        """Whether a part was started and hasn't stopped."""
        return any(each.running for each in self._parts)

    @property
    def stopping(self) -> bool:
        """Whether a part is being stopped."""
        return any(each.stopping for each in self._parts)

    @property
    def states(self) -> dict[str, ActivationState]:
        """The state of each part by its name. Source: J119."""
        return {name: state for each in self._parts for name, state in each.states.items()}

    @property
    def suspended(self) -> bool:
        """Whether delivery is suspended by hand."""
        return any(each.suspended for each in self._parts)

    @property
    def failing(self) -> int | None:
        """Number of messages of all parts that failed since anything else happened; see `ActivationBase`."""
        found = [each.failing for each in self._parts]
        return None if None in found else sum(each or 0 for each in found)

    @property
    def fault(self) -> JmsError | None:
        """The first fault that stopped a part, in the order of the parts; `None` if there is none."""
        return next((each.fault for each in self._parts if each.fault is not None), None)

    @property
    def stop_reason(self) -> str:
        """The first stop reason among the parts; empty if no part has one."""
        return next((each.stop_reason for each in self._parts if each.stop_reason), "")

    @property
    def over(self) -> bool:
        """Whether every part has stopped and its connection is closed."""
        return all(each.over for each in self._parts)

    @property
    def looks(self) -> bool:
        """Whether a part is checking for messages that stay at its broker."""
        return any(each.looks for each in self._parts)

    @property
    def blocked(self) -> bool:
        """Whether a part's broker may hold messages for an earlier connection, on which it did not answer."""
        return any(each.blocked for each in self._parts)

    @property
    def in_handler(self) -> bool:
        """Whether the caller is a handler of one of the parts."""
        return any(each.in_handler for each in self._parts)

    def statistics_by_part(self) -> dict[str, Statistics]:
        """Return a snapshot of each part by its name."""
        return {name: found for each in self._parts for name, found in each.statistics_by_part().items()}

    def reset_statistics(self) -> None:
        """Reset `statistics`; `counts` continue. Source: J120."""
        for each in self._parts:
            each.reset_statistics()

    def delete_subscription(self) -> None:
        """Delete the durable subscription of each part; see `ActivationBase.delete_subscription`."""
        for each in self._parts:
            each.delete_subscription()

    def suspend(self) -> None:
        """Suspend delivery until `resume`: running handlers finish, other messages return to the broker."""
        for each in self._parts:
            each.suspend()

    def resume(self) -> None:
        """Resume delivery."""
        for each in self._parts:
            each.resume()

    def request_stop(
        self, within: Seconds = STOP_WITHIN, *, reason: str = "told to stop", delete_durable: bool = True
    ) -> None:
        """Begin to stop all parts and return at once; see `ActivationBase.request_stop`."""
        with self._lock:  # not during a start: parts that haven't started yet can't be stopped
            for each in self._parts:
                each.request_stop(within, reason=reason, delete_durable=delete_durable)

    def await_stop(self, deadline: float) -> bool:
        """Wait until all parts have stopped; see `ActivationBase.await_stop`."""
        ended = [each.await_stop(deadline) for each in self._parts]
        return all(ended)

    def await_end(self, seconds: float) -> bool:
        """Wait at most `seconds`; return whether a part has stopped by itself."""
        return self._parts[0].await_end(seconds) or any(each.await_end(0) for each in self._parts)

    def is_idle(self) -> bool:
        """Return whether no part has a message in flight."""
        return all(each.is_idle() for each in self._parts)
