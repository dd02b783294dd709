"""How long to wait before trying again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from airflow_provider_jmsjca.errors import ConfigurationError

LONGEST_PAUSE = timedelta(minutes=5)
LONGEST_PAUSE_WHERE_LOOKS_COUNT = timedelta(hours=1)
_MOST_DOUBLINGS = 20


def pause(interval: timedelta, *, repeats: int, deliveries: int = 0) -> timedelta:
    """Return how long to wait before the next look at a queue that holds messages.

    While the queue moves it is the interval. It doubles with each look that finds the same message again, up
    to 5 minutes: nobody consumes, for example because the DAG is paused. Where a look counts as a delivery
    it doubles with each delivery, up to an hour: looking must not bring a message to the broker's limit of
    deliveries, after which it is discarded or dead-lettered. An interval longer than these holds as it is.

    Args:
        interval: The shortest pause.
        repeats: How many earlier looks in a row found the same message.
        deliveries: How often the broker has delivered the message; 0 where looks don't count.
    """
    repeated = min(_doubled(interval, repeats), LONGEST_PAUSE)
    counted = min(_doubled(interval, deliveries - 1), LONGEST_PAUSE_WHERE_LOOKS_COUNT)
    return max(interval, repeated, counted)


def _doubled(interval: timedelta, times: int) -> timedelta:
    factor: int = 1 << min(max(times, 0), _MOST_DOUBLINGS)
    return interval * factor


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """A fixed sequence of waits; the last one is repeated for ever.

    Attributes:
        steps: The waits, in order.
        jitter: By which part of itself a wait may be shortened, 0 to 1, so that many clients don't come
            back at the same moment.
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
        """Return how long to wait after so many failures in a row.

        Args:
            failures: 1 after the first.
            random: From 0 (the whole step) to 1 (shortened by all of the jitter).
        """
        step = self.steps[min(max(failures, 1), len(self.steps)) - 1]
        return step * (1 - self.jitter * random)


RECONNECT = Backoff(steps=tuple(timedelta(seconds=step) for step in (1, 2, 5, 5, 10)))
"""1, 2, 5, 5, 10 seconds, then 10 for ever. Source: J122."""
