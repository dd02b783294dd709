"""How long to wait before saying again that messages are there."""

from __future__ import annotations

from datetime import timedelta

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
