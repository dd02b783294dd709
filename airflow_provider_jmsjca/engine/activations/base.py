"""What every activation has, whichever its kind: on one connection, each member, a shared subscription.

A kind says how it begins, what it is doing and how it ends; runs, stops, drains, restarts, reports and what
JMSJCA's MBean shows are written here, once.
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
"""Seconds that running handlers get at a stop, unless it says otherwise."""

FAILING_FOR = timedelta(hours=1)
"""How long nothing but failures may happen in a run, unless it says otherwise."""

Seconds: TypeAlias = float | timedelta
"""A duration as callers give it: seconds; a `timedelta` says the same in its own way."""


def duration(name: str, value: Seconds) -> timedelta:
    """Return a duration that a caller gave.

    Args:
        name: Of the argument, for the error.
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
    """What ends a run: whichever bound is reached first; `None` is never reached.

    Attributes:
        max_messages: This many messages are settled.
        run_for: The activation has run this long.
        idle_for: Nothing came, and nothing was in hand, for this long while the broker was there.
        failing_for: Nothing but failures happened for this long: messages that had been delivered before
            failed once more, many times, and none was settled. Where the broker may hold messages for a
            connection on which it did not answer, nothing came for this long and for `idle_for`.

    Raises:
        ConfigurationError: A bound is out of range.
    """

    max_messages: int | None = None
    run_for: timedelta | None = None
    idle_for: timedelta | None = None
    failing_for: timedelta | None = None

    def __post_init__(self) -> None:
        faults = []
        if self.max_messages is not None and self.max_messages < 1:
            faults.append(f"max_messages is {self.max_messages}; expected at least 1")
        faults.extend(
            f"{name} is {value}; expected more than 0"
            for name, value in (
                ("run_for", self.run_for),
                ("idle_for", self.idle_for),
                ("failing_for", self.failing_for),
            )
            if value is not None and value <= timedelta(0)
        )
        if faults:
            raise ConfigurationError(faults)

    def reached(
        self, *, settled: int, elapsed: float, idle: float, failing: float, blocked: bool = False
    ) -> tuple[EndReason, str] | None:
        """Return which end is reached, also in words; `None` if none is.

        Args:
            settled: Messages.
            elapsed: Seconds since the start.
            idle: Seconds without anything to do.
            failing: Seconds with failures only, as `FailureStreak` counts them.
            blocked: As `ActivationBase.blocked` says.
        """
        if self.max_messages is not None and settled >= self.max_messages:
            return EndReason.COUNT, f"{settled} messages are settled"
        if self.run_for is not None and elapsed >= self.run_for.total_seconds():
            return EndReason.TIME, f"it has run for {self.run_for}"
        if self.idle_for is not None and idle >= self.idle_for.total_seconds():
            if not blocked:
                return EndReason.IDLE, f"nothing came for {self.idle_for}"
            quiet = max(self.idle_for, self.failing_for or self.idle_for)
            if idle >= quiet.total_seconds():
                return EndReason.BLOCKED, (
                    "the broker did not answer on a connection and may hold its messages; "
                    f"nothing came for {quiet}"
                )
        if self.failing_for is not None and failing >= self.failing_for.total_seconds():
            return EndReason.FAILURES, f"the same messages failed again and again for {self.failing_for}"
        return None


class FailureStreak:
    """For how long nothing but failures of the same messages happened.

    Few failures of each count for nothing: the redelivery handling may be about to move the message, or to
    delete it. That a message is parked until its redelivery is nothing else: it has only failed.

    Args:
        settings: After how many failures a message is moved or deleted.
        now: The moment, in seconds.
    """

    def __init__(self, settings: DeliverySettings, now: float) -> None:
        self._many = failures_of_each(settings)
        self._progress: tuple[int, int] | None = None
        self._failures = self._failures_before = 0
        self._since = self._last = now

    def seconds(self, counts: Counts, now: float, messages: Callable[[], int | None]) -> float:
        """Return how long handlers had failed at the last failure; 0 after few, or after anything else.

        Args:
            counts: What became of messages so far.
            now: The moment, in seconds.
            messages: Returns how many fail, as `ActivationBase.failing` says; asked after enough for one.
        """
        progress = (counts.settled, counts.delivered - counts.redelivered)
        failures = counts.rolled_back + counts.failed
        if progress != self._progress:
            self._progress, self._failures_before, self._since = progress, failures, now
        if failures != self._failures:
            self._failures, self._last = failures, now
        found = failures - self._failures_before
        # None fails where something else has just happened, which the counts will say next time.
        if found < self._many or not (failing := messages()) or found < self._many * failing:
            return 0.0
        return self._last - self._since


_FAILURES = 10


def failures_of_each(settings: DeliverySettings) -> int:
    """Return how often a message fails before that it fails may end a run: the handling comes first."""
    actions = settings.handling.actions
    return (actions[-1].at if actions else 0) + _FAILURES


Progress: TypeAlias = Callable[[Counts], object]
TICK_SECONDS = 0.05


class StopSignal(Protocol):
    """What tells a run to stop, as `threading.Event` does."""

    def is_set(self) -> bool:
        """Whether the run is to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMonitor:
    """How a run is watched.

    Attributes:
        run_ends: When it ends.
        stop: End when it is set.
        within: How long running handlers may take at the end.
        within_if_stopped: How long at most once `stop` is set.
        progress: Called with the counts now and then.
        progress_every: How often.
        clock: Seconds, monotonic; that of what is watched.
    """

    run_ends: RunLimits
    stop: StopSignal | None
    within: timedelta
    within_if_stopped: timedelta | None
    progress: Progress | None
    progress_every: timedelta
    clock: Callable[[], float]

    def until_end(self, running: ActivationBase) -> tuple[EndReason, str] | None:
        """Return which end was reached, also in words; `None`: it was stopped, or has stopped by itself."""
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
        """Stop what runs, wait for it, and return why it ended.

        Args:
            running: What is stopped, sooner if it is broken off meanwhile.
            found: What `until_end` returned.
        """
        ended_by, reason = found or (EndReason.STOPPED, "told to stop")
        over = False
        if not self._broken_off:
            running.request_stop(self.within, reason=reason, delete_durable=found is not None)
            over = self._is_over(running, self.within, unless_broken_off=True)
        if self._broken_off and not over:
            within = min(self.within, self.within_if_stopped or self.within)
            running.request_stop(within, reason=reason, delete_durable=False)
            # No sooner: the connection is closed only when the calls are left alone.
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
    """Return what is told of a run, JSON only.

    Args:
        counts: What became of its messages.
        ended_by: Which end it reached; `None`: it has stopped by itself.
        stop_reason: Why it has stopped, where that is told.
        besides: What some kinds have to tell.
    """
    report: dict[str, Any] = {**counts.as_dict(), "ended_by": str(ended_by or EndReason.STOPPED)}
    if ended_by is EndReason.STOPPED:
        report["stop_reason"] = stop_reason
    return report | besides


class ActivationBase(ABC):
    """One consumption under the rules of a spec, whichever kind.

    Every method may be called from any thread, but not from a signal handler.

    Args:
        settings: How it consumes.
        clock: Seconds, monotonic.
        consuming: Becomes the attribute.

    Attributes:
        settings: How it consumes.
        consuming: To wait for: set while the broker has confirmed the subscriptions, so that what is
            published from then on comes; cleared when the connection is lost, by `suspend` and by `stop`.
            Of several destinations those refused are not waited for. For reading only.
        ended_by: Which end the last `run` reached; `STOPPED` also when the handler stopped the activation.
        missing: Members that weren't up when the last `run` ended: what they hold is still there. `None`:
            there are no members, or there was no run.
        member_names: The members of the cluster that are consumed each by itself; empty where one connection
            serves.
        watchable: Whether somebody else may look in its place if messages wait, while it doesn't run.
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

    # -- what a kind says ---------------------------------------------------------------------------------

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
        """Which product the broker is; empty while there was no connection. Source: J115."""

    @property
    @abstractmethod
    def server(self) -> tuple[str, str]:
        """Host and port of the connection; empty while there was none. Source: J120."""

    @property
    @abstractmethod
    def counts(self) -> Counts:
        """What became of messages since the last start."""

    @property
    @abstractmethod
    def failing(self) -> int | None:
        """How many messages failed since one was settled, or delivered for the first time.

        `None`: a handler has a message that is none of them, and may yet be done with it.
        """

    @property
    @abstractmethod
    def stop_reason(self) -> str:
        """Why the activation has stopped; empty while it hasn't."""

    @property
    @abstractmethod
    def fault(self) -> JmsError | None:
        """What the activation has stopped for, if that was a fault."""

    @property
    @abstractmethod
    def over(self) -> bool:
        """Whether the activation has stopped and its connection is closed, whatever was left alone."""

    @property
    @abstractmethod
    def looks(self) -> bool:
        """Whether a look for messages that stay at the broker is under way: silence ends no run then."""

    @property
    @abstractmethod
    def blocked(self) -> bool:
        """Whether the broker may hold messages for an earlier connection, on which it did not answer.

        RabbitMQ does so while its memory or disk alarm is on. Messages may wait then although none comes.
        """

    @abstractmethod
    def statistics_by_part(self) -> dict[str, Statistics]:
        """Return a snapshot of each connection, by the name of what is consumed over it."""

    @abstractmethod
    def reset_statistics(self) -> None:
        """Let `statistics` begin anew; `counts` go on. Source: J120."""

    @abstractmethod
    def suspend(self) -> None:
        """Deliver nothing more until `resume`; what is being handled is finished, the rest goes back."""

    @abstractmethod
    def resume(self) -> None:
        """Deliver again."""

    @abstractmethod
    def begin(
        self, limit: int | None = None, *, stop_within: timedelta = timedelta(seconds=STOP_WITHIN)
    ) -> None:
        """Do what `start` does, within bounds, when no stop is under way.

        Args:
            limit: No more messages than this are settled; `None`: no limit.
            stop_within: How long running handlers may take when one of them asks for a stop.

        Raises:
            ConfigurationError: The activation runs already, and a limit is given.
        """

    @abstractmethod
    def request_stop(
        self, within: Seconds = STOP_WITHIN, *, reason: str = "told to stop", delete_durable: bool = True
    ) -> None:
        """Begin to stop, and return at once; a stop under way is over sooner if this one allows less time.

        Args:
            within: Seconds that running handlers may take.
            reason: For the log.
            delete_durable: Whether the durable subscription may go, if the settings say so.
        """

    @abstractmethod
    def await_stop(self, deadline: float) -> bool:
        """Wait for the end of a stop, until the deadline on the clock; return what `stop` returns."""

    @abstractmethod
    def await_end(self, seconds: float) -> bool:
        """Wait `seconds` at most; say whether the activation has stopped by itself."""

    @abstractmethod
    def quiet_since(self) -> float | None:
        """Since when there was nothing to do, on the clock; `None` while there is, or while not connected."""

    @abstractmethod
    def is_idle(self) -> bool:
        """Whether no message is in hand; suspended, whether none is being handled."""

    @abstractmethod
    def delete_subscription(self) -> None:
        """Delete the durable subscription with what it holds, of each member; for one that doesn't run.

        Raises:
            ConfigurationError: There is none, or it runs.
            JmsError: The broker can't be reached, or refuses.
        """

    @property
    @abstractmethod
    def in_handler(self) -> bool:
        """Whether the caller is a handler of this activation."""

    # -- what all have ------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether the activation consumes; of several members, one does and all were tried."""
        return self.consuming.is_set()

    @property
    def states(self) -> dict[str, ActivationState]:
        """The state of each connection, by the name of what is consumed over it. Source: J119."""
        return {self.settings.name: self.state}

    @property
    def down(self) -> tuple[str, ...]:
        """The members that aren't up; empty where there are none."""
        return ()

    def statistics(self) -> Statistics:
        """Return a snapshot; of several members the sums (see `statistics.total`).

        Source: J117, J121.
        """
        return total(self.statistics_by_part(), most=self.settings.delivery.concurrency)

    def report(self, so_far: Counts | None = None, ended_by: EndReason | None = None) -> dict[str, Any]:
        """Return what is told of the last run, JSON only: counts, which end it reached, and why it stopped.

        Args:
            so_far: Counts of earlier runs that it goes on from.
            ended_by: Which end it reached; `None`: as the run saw it.
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
        """Return what JMSJCA's MBean shows of an activation, under its names. Source: J117."""
        return management.attributes(self)

    def operate(self, name: str) -> object:
        """Carry out an operation of JMSJCA's MBean, such as `getStatus`. Source: J116, J118, J120."""
        return management.operate(self, name)

    def start(self) -> None:
        """Begin to consume, and return at once; it succeeds also while the broker is down.

        What goes wrong later is raised nowhere: a broker that refuses for good ends the activation, with an
        ERROR in the log. `state`, `fault` and `statistics().refused` tell whoever asks. `run` raises instead.

        Starting twice is harmless; after a stop it begins anew, and a stop under way is waited for. Handlers
        run in the context (`contextvars`) of the caller.

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
            within: Seconds that running handlers may take.

        Raises:
            ConfigurationError: A handler calls it, and would wait for itself.

        Source: J120.
        """
        self.refuse_in_handler("restart")
        self.stop(within, reason="told to restart")
        self.start()

    def drain(self, within: Seconds = STOP_WITHIN) -> bool:
        """Suspend, and wait until what is being handled is done.

        Args:
            within: Seconds that this may take.

        Returns:
            Whether all of it is done; `False` if time was up first.

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

        A durable subscription is deleted if the settings say so, everything has ended in good order and the
        connection is up. Otherwise it stays, with what it holds. A distributed one always stays.

        Running handlers may return and are committed. Whoever doesn't return in time is left alone: the
        connection is closed, which rolls its delivery back. In a handler this only asks for the stop, and
        returns `False`.

        Args:
            within: Seconds that running handlers may take, and that this may take, for all members together.
            reason: For the log.

        Returns:
            Whether everything has ended in good order. `False`: a handler was left alone, or the broker
            didn't take leave in time.
        """
        deadline = self._clock() + duration("within", within).total_seconds()
        self.request_stop(within, reason=reason)
        return self.await_stop(deadline)

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
        failing_for: Seconds | None = None,
        stop: StopSignal | None = None,
        within: Seconds = STOP_WITHIN,
        within_if_stopped: Seconds | None = None,
        progress: Progress | None = None,
        progress_every: Seconds = 5.0,
    ) -> Counts:
        """Consume until an end is reached, then stop.

        The ends count the messages of all members, and of a distributed subscription those of its queue. With
        members, `idle_for` ends it when one is up and nothing came from those that are; each is waited for
        until it has answered or failed to once.

        Args:
            max_messages: End when so many messages are settled: committed, moved or deleted; never more.
            run_for: End after so many seconds.
            idle_for: End when, with the connection up, nothing came and nothing was in hand for so many
                seconds. After the broker has not answered in time on a connection, it may hold that
                connection's messages. Until one of them has come again, the run ends as
                `EndReason.BLOCKED` instead, after the longer of `idle_for` and `failing_for`.
            failing_for: End when for so many seconds nothing but failures happened: messages that had been
                delivered before failed again and again, and none was settled. `None`: `idle_for`, or an
                hour without it.
            stop: End when it is set: somebody breaks it off. A durable subscription stays then, whatever the
                settings say, for messages that a later run is to get.
            within: Seconds that running handlers may take at the end.
            within_if_stopped: Seconds at most once `stop` is set, be it at the end; `None`: no less.
            progress: Called with the counts now and then.
            progress_every: Seconds between two such calls.

        Returns:
            The counts.

        Raises:
            PermanentBrokerError: The broker refuses; of several members every one does.
            ConfigurationError: The settings can't work on this broker, an end is out of range, it runs
                already and `max_messages` is given, or a handler calls it, and would wait for itself.
        """
        self.refuse_in_handler("run")
        idle, fails = _optional("idle_for", idle_for), _optional("failing_for", failing_for)
        if fails is None:
            fails = idle if idle is not None and idle > timedelta(0) else duration("failing_for", FAILING_FOR)
        watch = RunMonitor(
            run_ends=RunLimits(
                max_messages=max_messages,
                run_for=_optional("run_for", run_for),
                idle_for=idle,
                failing_for=fails,
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
    """An activation that consists of several, which begin and end together.

    Args:
        settings: How it consumes.
        parts: Those it consists of.
        clock: Seconds, monotonic.
        consuming: Becomes the attribute.
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
        """How many messages of all parts failed since anything else happened; see `ActivationBase`."""
        found = [each.failing for each in self._parts]
        return None if None in found else sum(each or 0 for each in found)

    @property
    def fault(self) -> JmsError | None:
        """What the first part that met a fault has stopped for."""
        return next((each.fault for each in self._parts if each.fault is not None), None)

    @property
    def stop_reason(self) -> str:
        """Why the group has stopped; empty while it hasn't."""
        return next((each.stop_reason for each in self._parts if each.stop_reason), "")

    @property
    def over(self) -> bool:
        """Whether every part has stopped and its connection is closed."""
        return all(each.over for each in self._parts)

    @property
    def looks(self) -> bool:
        """Whether a part is just looking if messages stay at its broker."""
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
        """Let `statistics` begin anew; `counts` go on. Source: J120."""
        for each in self._parts:
            each.reset_statistics()

    def delete_subscription(self) -> None:
        """Delete the durable subscription of each part; see `ActivationBase.delete_subscription`."""
        for each in self._parts:
            each.delete_subscription()

    def suspend(self) -> None:
        """Deliver nothing more until `resume`; what is being handled is finished, the rest goes back."""
        for each in self._parts:
            each.suspend()

    def resume(self) -> None:
        """Deliver again."""
        for each in self._parts:
            each.resume()

    def request_stop(
        self, within: Seconds = STOP_WITHIN, *, reason: str = "told to stop", delete_durable: bool = True
    ) -> None:
        """Begin to stop all parts, and return at once; see `ActivationBase.request_stop`."""
        with self._lock:  # not amid a start: what hasn't started yet can't be stopped
            for each in self._parts:
                each.request_stop(within, reason=reason, delete_durable=delete_durable)

    def await_stop(self, deadline: float) -> bool:
        """Wait for the end of a stop of all parts; see `ActivationBase.await_stop`."""
        ended = [each.await_stop(deadline) for each in self._parts]
        return all(ended)

    def await_end(self, seconds: float) -> bool:
        """Wait `seconds` at most; say whether a part has stopped by itself."""
        return self._parts[0].await_end(seconds) or any(each.await_end(0) for each in self._parts)

    def is_idle(self) -> bool:
        """Whether no part has a message in hand."""
        return all(each.is_idle() for each in self._parts)
