"""Wait times before retries."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from airflow_provider_jmsjca.errors import ConfigurationError

LONGEST_PAUSE = timedelta(minutes=5)
LONGEST_PAUSE_WHERE_LOOKS_COUNT = timedelta(hours=1)
_MOST_DOUBLINGS = 20


def pause(interval: timedelta, *, repeats: int, deliveries: int = 0) -> timedelta:
    """Return the pause before the next probe of a queue that holds messages.

    While messages are being consumed, the pause is `interval`. If a probe finds the same message again,
    nothing consumes the queue, for example because the DAG is paused. The pause then doubles with each such
    probe, up to 5 minutes.

    If a probe counts as a delivery, the pause doubles with each delivery, up to an hour. Otherwise the probes
    could exhaust the broker's delivery limit, and the broker would discard or dead-letter the message. An
    `interval` above these limits is used unchanged.

    Args:
        interval: Minimum pause.
        repeats: Number of previous consecutive probes that found the same message.
        deliveries: Number of deliveries of the message by the broker; 0 if probes don't count as deliveries.
    """
    repeated = min(_doubled(interval, repeats), LONGEST_PAUSE)
    counted = min(_doubled(interval, deliveries - 1), LONGEST_PAUSE_WHERE_LOOKS_COUNT)
    return max(interval, repeated, counted)


def _doubled(interval: timedelta, times: int) -> timedelta:
    factor: int = 1 << min(max(times, 0), _MOST_DOUBLINGS)
    return interval * factor


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """A fixed sequence of waits; the last one is repeated indefinitely.

    Attributes:
        steps: The waits, in order.
        jitter: Maximum fraction by which a wait is shortened, 0 to 1, so that many clients don't reconnect at
            the same moment.
    """

    steps: tuple[timedelta, ...]
    jitter: float = 0.2

    def __post_init__(self) -> None:
        faults = []
        if not self.steps:
            faults.append("a backoff needs at least one step")
        faults += [f"a backoff step can't be negative: {step}" for step in self.steps if step < timedelta(0)]
        if not 0 <= self.jitter <= 1:
            faults.append(f"the jitter of a backoff lies between 0 and 1, not {self.jitter}")
        if faults:
            raise ConfigurationError(faults)

    def wait(self, failures: int, random: float) -> timedelta:
        """Return the wait after a number of consecutive failures.

        Args:
            failures: Number of consecutive failures, at least 1.
            random: From 0 (the whole step) to 1 (shortened by all of the jitter).
        """
        step = self.steps[min(max(failures, 1), len(self.steps)) - 1]
        return step * (1 - self.jitter * random)


RECONNECT = Backoff(steps=tuple(timedelta(seconds=step) for step in (1, 2, 5, 5, 10)))
"""Waits before reconnecting: 1, 2, 5, 5 seconds, then always 10. Source: J122."""
