"""Times of the next attempts after an outage or a refusal."""

from __future__ import annotations

import enum
from datetime import timedelta

from airflow_provider_jmsjca.core.backoff import Backoff
from airflow_provider_jmsjca.core.delivery.decisions import LogLevel
from airflow_provider_jmsjca.core.delivery.settings import OutageSettings

RETRY = Backoff(steps=tuple(timedelta(seconds=seconds) for seconds in (1, 5, 15, 60)))
"""Pauses before a refused destination is opened again.

They are long, because some brokers close the connection with each refusal.
"""


class RefusedDestinations:
    """The refused destinations, each with the reason and the time of the next attempt.

    Args:
        retry: Pauses between two attempts.
    """

    def __init__(self, retry: Backoff = RETRY) -> None:
        self._retry = retry
        self._counts: dict[int, int] = {}
        self._due: dict[int, float] = {}
        self._reasons: dict[int, str] = {}
        self._final: dict[int, bool] = {}

    def refused(self, source: int, reason: str, now: float, chance: float, *, final: bool) -> timedelta:
        """Record a refusal, and return the pause before the next attempt.

        Args:
            source: Index of the destination.
            reason: The broker's reason.
            now: Current time in seconds, on a monotonic clock.
            chance: A random number, 0 up to but not including 1, for jitter.
            final: Whether the broker is expected to refuse again.
        """
        count = self._counts.get(source, 0) + 1
        pause = self._retry.wait(count, chance)
        self._counts[source] = count
        self._reasons[source] = reason
        self._final[source] = final
        self._due[source] = now + pause.total_seconds()
        return pause

    def accepted(self, source: int) -> bool:
        """Record that a destination is consumed; return whether it had been refused."""
        self._due.pop(source, None)
        self._reasons.pop(source, None)
        self._final.pop(source, None)
        return self._counts.pop(source, None) is not None

    def may_try(self, source: int, now: float) -> bool:
        """Return whether a destination may be opened now."""
        return self._due.get(source, now) <= now

    def due(self, now: float) -> tuple[int, ...]:
        """Return the indexes of refused destinations that are due for another attempt, in ascending order."""
        return tuple(sorted(source for source, when in self._due.items() if when <= now))

    @property
    def next_due(self) -> float | None:
        """Time of the next attempt at a refused destination; `None` if no destination is refused."""
        return min(self._due.values(), default=None)

    @property
    def all_final(self) -> bool:
        """Whether the broker is expected to refuse every refused destination again."""
        return all(self._final.values())

    @property
    def reasons(self) -> dict[int, str]:
        """The broker's reason for each refused destination, by the destination's index."""
        return dict(self._reasons)


class ActivationState(enum.StrEnum):
    """State that an activation reports. `CONNECTING` always follows the start.

    `UP` means that the broker has confirmed the subscriptions. While delivery is suspended, it means that the
    connection is up.

    Source: J119.
    """

    UP = "Up"
    DOWN = "Down"
    CONNECTING = "Connecting"
    DISCONNECTING = "Disconnecting"


class Outage:
    """Counts failed attempts and suspended time, from a connection loss until consumers are open again.

    Source: J122; W24-W26.
    """

    def __init__(self, settings: OutageSettings) -> None:
        self._settings = settings
        self.over()

    def over(self) -> None:
        """Record that a connection is up and its consumers are open."""
        self._attempts = 0
        self._reported = False
        self._left_to_suspend = timedelta(0)

    def began(self) -> None:
        """Record that a connection that was up is lost."""
        self._left_to_suspend = self._settings.max_suspend

    def level(self) -> LogLevel:
        """Return the log level for a failure to connect. Source: J108."""
        first, self._reported = not self._reported, True
        if not self._settings.minimal_logging:
            return LogLevel.WARNING
        return LogLevel.ERROR if first else LogLevel.DEBUG

    def pause(self, chance: float) -> tuple[ActivationState, timedelta]:
        """Return the pause before the next attempt, and the state during it.

        Args:
            chance: A random number, 0 up to but not including 1.
        """
        if self._left_to_suspend > timedelta(0):
            pause = min(self._settings.init_suspend, self._left_to_suspend)
            self._left_to_suspend -= pause
            return ActivationState.DOWN, pause
        self._attempts += 1
        return ActivationState.CONNECTING, self._settings.backoff.wait(self._attempts, chance)
