"""The bounds that end a listener's run, among them how long a run may only fail; the report of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

from airflow_provider_jmsjca.core.delivery.settings import DeliverySettings
from airflow_provider_jmsjca.core.quantities import count_faults
from airflow_provider_jmsjca.engine.collecting.batch_spec import EndReason
from airflow_provider_jmsjca.engine.delivering.statistics import Counts
from airflow_provider_jmsjca.errors import ConfigurationError

STOP_WITHIN = 30.0
"""Default time in seconds that running handlers get at a stop."""

TICK_SECONDS = 0.05
"""Seconds between two checks of whether a run has ended."""

FAILURE_TIMEOUT = timedelta(hours=1)
"""Default of `failure_timeout`: a run ends after this time with failures only."""

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


def optional_duration(name: str, value: Seconds | None) -> timedelta | None:
    """Convert an optional duration argument as `duration` does; `None` stays `None`."""
    return None if value is None else duration(name, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """Bounds of a run, which ends when it reaches the first of them; a bound of `None` is never reached.

    Attributes:
        max_messages: This many messages are settled.
        run_for: The activation has run this long.
        idle_for: No message arrived and none was in flight for this long while the broker was connected.
            While the broker may hold messages for an earlier connection (`Listener.blocked`), the longer of
            `idle_for` and `failure_timeout` applies.
        failure_timeout: Only failures happened for this long: redelivered messages failed many times, and
            no message was settled.

    Raises:
        ConfigurationError: A bound is out of range.
    """

    max_messages: int | None = None
    run_for: timedelta | None = None
    idle_for: timedelta | None = None
    failure_timeout: timedelta | None = None

    def __post_init__(self) -> None:
        faults = [] if self.max_messages is None else count_faults("max_messages", self.max_messages)
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

    def end_reason(
        self, *, settled: int, elapsed: float, idle: float, failing: float, blocked: bool = False
    ) -> tuple[EndReason, str] | None:
        """Return why the run ends, with a description; `None` if no bound is reached.

        Args:
            settled: Number of settled messages.
            elapsed: Seconds since the start.
            idle: Seconds since the last activity.
            failing: Seconds with failures only, as measured by `FailureStreak`.
            blocked: Value of `Listener.blocked`.
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
    A delay before a redelivery is no progress: the message has only failed.

    Args:
        settings: Delivery settings; they say after how many failures a message is moved or deleted.
        now: Current time, in seconds.
    """

    def __init__(self, settings: DeliverySettings, now: float) -> None:
        self._many = failures_of_each(settings)
        self._progress: tuple[int, int] | None = None
        self._failures = self._failures_before = 0
        self._since = self._last = now

    def seconds(self, counts: Counts, now: float, messages: Callable[[], int | None]) -> float:
        """Return the seconds from the last progress to the last failure; 0 while failures are few.

        Args:
            counts: Message counts so far.
            now: Current time, in seconds.
            messages: Returns the number of failing messages, see `Listener.failing`. Called only if there
                are enough failures for at least one message, because it takes the lock of the driver.
        """
        progress = (counts.settled, counts.delivered - counts.redelivered)
        failures = counts.rolled_back + counts.failed
        if progress != self._progress:
            self._progress, self._failures_before, self._since = progress, failures, now
        if failures != self._failures:
            self._failures, self._last = failures, now
        found = failures - self._failures_before
        # `messages` returns 0 or `None` if a message was settled or delivered since the counts were read.
        if found < self._many or not (failing := messages()) or found < self._many * failing:
            return 0.0
        return self._last - self._since


_FAILURES = 10


def failures_of_each(settings: DeliverySettings) -> int:
    """Return how often each message must have failed before `RunLimits.failure_timeout` may end a run.

    The number is 10 more than the delivery count of the last action of the redelivery handling.
    """
    actions = settings.handling.actions
    return (actions[-1].at if actions else 0) + _FAILURES


def run_report(
    counts: Counts, ended_by: EndReason | None, stop_reason: str = "", **besides: object
) -> dict[str, Any]:
    """Return the report of a run, with JSON values only.

    Args:
        counts: Message counts of the run.
        ended_by: Why the run ended; `None` is reported as `EndReason.STOPPED`.
        stop_reason: Why the listener stopped; included only if `ended_by` is `EndReason.STOPPED`.
        besides: Further entries, for some kinds of activation.
    """
    report: dict[str, Any] = {**counts.as_dict(), "ended_by": str(ended_by or EndReason.STOPPED)}
    if ended_by is EndReason.STOPPED:
        report["stop_reason"] = stop_reason
    return report | besides
