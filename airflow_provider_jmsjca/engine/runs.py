"""Watches a running activation until one of its ends is reached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol, TypeAlias

from airflow_provider_jmsjca.engine.batch_spec import EndReason
from airflow_provider_jmsjca.engine.ends import Ends
from airflow_provider_jmsjca.engine.statistics import Counts

Progress: TypeAlias = Callable[[Counts], object]
TICK_SECONDS = 0.05


class StopSignal(Protocol):
    """What tells a run to stop, as `threading.Event` does."""

    def is_set(self) -> bool:
        """Whether it is time."""


class Running(Protocol):
    """What is watched."""

    @property
    def counts(self) -> Counts:
        """What became of messages so far."""

    def await_end(self, seconds: float) -> bool:
        """Wait for so long; say whether it has stopped by itself."""

    def quiet_since(self) -> float | None:
        """Since when it has had nothing to do although the broker is there; `None` while that isn't so."""

    def request_stop(self, within: timedelta, *, reason: str, delete_durable: bool) -> None:
        """Begin to stop, or let a stop under way be over sooner."""

    def await_stop(self, deadline: float) -> bool:
        """Wait for the end of a stop, until the deadline on the clock; say whether it was in good order."""

    @property
    def over(self) -> bool:
        """Whether it has stopped and its connection is closed, whatever was left alone."""

    @property
    def looks(self) -> bool:
        """Whether it is just looking if messages stay at the broker: silence doesn't end that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """How a run is watched.

    Attributes:
        ends: When it ends.
        stop: End when it is set.
        within: How long running handlers may take at the end.
        within_if_stopped: How long at most once `stop` is set.
        progress: Called with the counts now and then.
        progress_every: How often.
        clock: Seconds, monotonic; that of what is watched.
    """

    ends: Ends
    stop: StopSignal | None
    within: timedelta
    within_if_stopped: timedelta | None
    progress: Progress | None
    progress_every: timedelta
    clock: Callable[[], float]

    def until_end(self, running: Running) -> tuple[EndReason, str] | None:
        """Return which end was reached, also in words; `None`: it was stopped, or has stopped by itself."""
        began = idle_since = self.clock()
        next_progress = began + self.progress_every.total_seconds()
        while not running.await_end(TICK_SECONDS) and not self._broken_off:
            now = self.clock()
            if self.progress is not None and now >= next_progress:
                next_progress = now + self.progress_every.total_seconds()
                self.progress(running.counts)
            quiet = running.quiet_since()
            idle_since = now if quiet is None else max(idle_since, quiet)
            found = self.ends.reached(
                settled=running.counts.settled, elapsed=now - began, idle=now - idle_since
            )
            if found is not None and not (found[0] is EndReason.IDLE and running.looks):
                return found
        return None

    def end(self, running: Running, found: tuple[EndReason, str] | None) -> EndReason:
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

    def _is_over(self, running: Running, within: timedelta, *, unless_broken_off: bool = False) -> bool:
        deadline = self.clock() + within.total_seconds()
        while not (running.await_stop(self.clock() + TICK_SECONDS) or running.over):
            if self.clock() >= deadline or (unless_broken_off and self._broken_off):
                return False
        return True
