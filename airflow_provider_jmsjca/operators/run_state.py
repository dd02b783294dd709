"""State of a listener that survives its deferrals, from one run on a worker to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from airflow_provider_jmsjca.core.backoff import pause
from airflow_provider_jmsjca.engine.delivering.statistics import Counts

# Duration in seconds of a run that only checks whether a message arrives.
_LOOK = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePause:
    """A pause in probing a queue, because a probe found a message that the task then couldn't receive.

    Attributes:
        message_id: Id of that message; `None`: it has no id.
        repeats: Number of consecutive wake-ups by this message.
        until: Time of the next probe, in seconds since the epoch.
    """

    message_id: str | None
    repeats: int
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """State of a listener when it starts or resumes on a worker. Times are seconds since the epoch.

    Attributes:
        counts: Counts of the previous runs.
        until: End of `run_for`; `None`: never.
        idle_until: End of `idle_for` if no message arrives; `None` until the first run on a worker has ended.
        timeout_at: End of Airflow's `execution_timeout`, counted from the first run.
        woken_by: The trigger's event, if a queue had messages; `None`: another reason resumed the task.
        pauses: Pauses of queues, by the name of their watch.
        members_down: The members that were down when the task left the worker; `None`: it has no members.
        failing_since: Start of the period with failures only; `None`: there is no such period.
        failures_before: Number of failures before that period.
    """

    counts: Counts = field(default_factory=Counts)
    until: float | None = None
    idle_until: float | None = None
    timeout_at: float | None = None
    woken_by: Mapping[str, Any] | None = None
    pauses: Mapping[str, QueuePause] = field(default_factory=dict)
    members_down: tuple[str, ...] | None = None
    failing_since: float | None = None
    failures_before: int = 0

    @property
    def deadline(self) -> float | None:
        """Time at which the listener resumes on a worker even without a message."""
        deadlines = (self.until, self.idle_until, self.timeout_at)
        return min((each for each in deadlines if each is not None), default=None)

    @property
    def ends_by_time(self) -> bool:
        """Whether the deadline is the end of `run_for`."""
        return self.until is not None and self.deadline == self.until

    @property
    def ends_by_timeout(self) -> bool:
        """Whether `execution_timeout` comes before the ends of `run_for` and `idle_for`."""
        own = (self.until, self.idle_until)
        return self.timeout_at is not None and all(each is None or self.timeout_at < each for each in own)

    def idle_limit(self, now: float, *, idle_for: float | None, defer_after: float | None) -> float | None:
        """Return after how many seconds without a message the listener leaves the worker; `None`: never.

        Even if `idle_for` is over already, a short time is returned, in which the broker can deliver a
        message.

        Args:
            now: The current time.
            idle_for: Argument of the operator.
            defer_after: Argument of the operator; `None`: the task can't be deferred.
        """
        if defer_after is None or idle_for is None:
            return idle_for if defer_after is None else defer_after
        left = idle_for
        if self.idle_until is not None:
            left = max(self.idle_until - now, min(_LOOK, idle_for))
        return min(left, defer_after)

    def after(
        self,
        counts: Counts,
        now: float,
        *,
        began: float,
        quiet: float,
        idle_for: float | None,
        interval: float,
    ) -> RunState:
        """Return the state of the listener after a run that ended because no message arrived.

        A run without any message doesn't restart `idle_for`. If the task was woken by a message and then
        didn't receive it, the probes of that queue pause for a while: another consumer may hold the message.

        Args:
            counts: Counts of all runs, including this one.
            now: The current time.
            began: Start of the run.
            quiet: Seconds since the last message.
            idle_for: Argument of the operator.
            interval: Seconds of the shortest pause.
        """
        has_arrived = counts != self.counts
        idle_until = self.idle_until
        if idle_for is None:
            idle_until = None
        elif has_arrived or idle_until is None:
            idle_until = now - quiet + idle_for
        pauses = dict(self.pauses)
        if self.woken_by is not None:
            last = pauses.pop(self.woken_by["watch"], None)
            if not has_arrived:
                pauses[self.woken_by["watch"]] = _queue_pause(self.woken_by, last, now, interval)
        since, before = self._failing(counts, began)
        return replace(
            self,
            counts=counts,
            idle_until=idle_until,
            woken_by=None,
            pauses=pauses,
            failing_since=since,
            failures_before=before,
        )

    def _failing(self, counts: Counts, began: float) -> tuple[float | None, int]:
        before, failures = self.counts, _failures(counts)
        if counts.settled != before.settled or _first_deliveries(counts) != _first_deliveries(before):
            return None, failures
        if self.failing_since is None and failures > _failures(before):
            return began, _failures(before)
        return self.failing_since, self.failures_before

    def has_only_failures(self, now: float, *, failure_timeout: float, failures: int) -> bool:
        """Return whether the same messages, and no others, have failed for `failure_timeout` seconds.

        The time and the failures before deferrals are included.

        Args:
            now: The current time.
            failure_timeout: Seconds for which the messages may fail.
            failures: Minimum number of failures in this time; with fewer, the method returns `False`.
        """
        since, many = self.failing_since, _failures(self.counts) - self.failures_before
        return since is not None and now - since >= failure_timeout and many >= failures

    def as_state(self) -> dict[str, Any]:
        """Return the state for `resumed`, with JSON values only."""
        return {
            "so_far": self.counts.as_dict(),
            "until": self.until,
            "idle_until": self.idle_until,
            "timeout_at": self.timeout_at,
            "rests": {
                name: [rest.message_id, rest.repeats, rest.until] for name, rest in self.pauses.items()
            },
            "members_down": None if self.members_down is None else list(self.members_down),
            "failing": [self.failing_since, self.failures_before],
        }

    @classmethod
    def resumed(cls, event: Mapping[str, Any], now: float) -> RunState:
        """Return the state of the listener from the trigger's event."""
        state = event["state"]
        down = state["members_down"]
        since, before = state["failing"]
        run_state = cls(
            counts=Counts(**state["so_far"]),
            until=state["until"],
            idle_until=state["idle_until"],
            timeout_at=state["timeout_at"],
            woken_by=event if event["event"] == "ready" else None,
            pauses={
                name: QueuePause(message_id=message_id, repeats=repeats, until=until)
                for name, (message_id, repeats, until) in state["rests"].items()
            },
            members_down=None if down is None else tuple(down),
            failing_since=since,
            failures_before=before,
        )
        if (
            event["event"] == "deadline"
            and run_state.idle_until is not None
            and not (run_state.ends_by_time or run_state.ends_by_timeout)
        ):
            # By the triggerer's clock, `idle_for` is over. The worker's clock may be behind and must not
            # prolong it.
            return replace(run_state, idle_until=min(run_state.idle_until, now))
        return run_state


def _failures(counts: Counts) -> int:
    return counts.rolled_back + counts.failed


def _first_deliveries(counts: Counts) -> int:
    return counts.delivered - counts.redelivered


def _queue_pause(
    event: Mapping[str, Any], last: QueuePause | None, now: float, interval: float
) -> QueuePause:
    message_id = event["message_id"]
    again = last is not None and message_id is not None and message_id == last.message_id
    repeats = last.repeats + 1 if last is not None and again else 0
    wait = pause(timedelta(seconds=interval), repeats=repeats, deliveries=event["deliveries"])
    return QueuePause(message_id=message_id, repeats=repeats, until=now + wait.total_seconds())
