"""Counters and statistics of a listener."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from airflow_provider_jmsjca.core.copies.dead_letter import without_secrets
from airflow_provider_jmsjca.core.failure import Failure

SAMPLE_POINTS = (1, 1_000, 10_000, 20_000, 100_000)
"""Numbers of deliveries at which the elapsed time is recorded. Source: J121."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Counts of messages by outcome.

    Attributes:
        delivered: Calls of the handler with a message; each attempt counts.
        redelivered: Calls that were not the first attempt.
        committed: Messages settled because their handler completed them.
        rolled_back: Deliveries that were rolled back.
        moved: Messages moved away by the redelivery handling or as poison.
        deleted: Messages deleted by the redelivery handling.
        parked: Delays delegated to limbo or to the broker.
        failed: Moves, deletions, delayed copies and commits that the broker refused.
        in_doubt: Messages with an unknown settlement outcome, because the connection was lost during it.
        repeated: Messages redelivered after an outage although they were settled: settled once more, and
            not delivered.
    """

    delivered: int = 0
    redelivered: int = 0
    committed: int = 0
    rolled_back: int = 0
    moved: int = 0
    deleted: int = 0
    parked: int = 0
    failed: int = 0
    in_doubt: int = 0
    repeated: int = 0

    @property
    def settled(self) -> int:
        """Number of settled messages."""
        return self.committed + self.moved + self.deleted

    def __add__(self, other: Counts) -> Counts:
        return Counts(**{name: count + getattr(other, name) for name, count in self.as_dict().items()})

    def __sub__(self, other: Counts) -> Counts:
        return Counts(**{name: count - getattr(other, name) for name, count in self.as_dict().items()})

    def as_dict(self) -> dict[str, int]:
        """Return the counts by name, for XCom."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """A snapshot of an activation.

    Attributes:
        counts: Counts of messages by outcome.
        active: Handlers running now (`A-EP`).
        highest_active: The most that ever ran at once (`H-EP`).
        threads: Threads in the pool now (`EP`).
        in_flight: Messages received and not settled.
        connections: Number of connections that were opened.
        since_commit: Moves and deletions since the last commit (`BCSLDC`).
        since_move: Commits since the last move or deletion (`DCSLBC`).
        redelivered_messages: Messages delivered more than once (`RM`).
        refused: Reasons why some or all destinations are not consumed: a refusal by the broker, a missing
            connection, or an unusable store. Empty while all are consumed. After a stop because of such a
            reason, that reason remains.
        samples: Seconds from the start to the 1st, 1,000th, 10,000th, 20,000th and 100,000th delivery
            (`t(s0)` to `t(s4)`). Deliveries that haven't happened are left out.
        batch_ends: Calls of the handler with an EndOfBatch message, which `counts` leave out.
        calls: Calls of the handler, with EndOfBatch messages too, over all starts of the activation.
        holds_subscription: Whether this process holds the distributed durable subscription; `None` if the
            activation has none.
        dead_lettered: Messages moved because they failed; `counts.moved` has moves for any reason.
        last_failure: The last exception of a handler; empty if none raised.
        outages: Connections lost since the last start.
        handler_seconds: Time spent in the handler since the last start, in seconds.

    Source: J117, J121.
    """

    counts: Counts
    active: int
    highest_active: int
    threads: int
    in_flight: int
    connections: int
    since_commit: int
    since_move: int
    redelivered_messages: int
    samples: tuple[float, ...]
    refused: tuple[str, ...] = ()
    batch_ends: int = 0
    calls: int = 0
    holds_subscription: bool | None = None
    dead_lettered: int = 0
    last_failure: str = ""
    outages: int = 0
    handler_seconds: float = 0.0

    def as_map(self) -> dict[str, float]:
        """Return the statistics under JMSJCA's keys, as its management bean shows them.

        Returns:
            `DC`: messages committed. `BC`: moved or deleted. `BCSLDC`: moved or deleted since the last
            commit. `DCSLBC`: committed since the last move or deletion. `DA`: deliveries, each attempt
            counts. `R`: redeliveries. `RM`: messages delivered more than once. `A-EP`: handlers running
            now. `H-EP`: the most that ever ran at once. `EP`: threads in the pool. `D(s0)`, `t(s0)` and so
            on: a number of deliveries, and the seconds from the start to that delivery.

        Source: J121.
        """
        counts = self.counts
        found: dict[str, float] = {
            "DC": counts.committed,
            "BC": counts.moved + counts.deleted,
            "BCSLDC": self.since_commit,
            "DCSLBC": self.since_move,
            "DA": counts.delivered,
            "R": counts.redelivered,
            "RM": self.redelivered_messages,
            "A-EP": self.active,
            "H-EP": self.highest_active,
            "EP": self.threads,
        }
        for number, (point, seconds) in enumerate(zip(SAMPLE_POINTS, self.samples, strict=False)):
            found[f"D(s{number})"] = point
            found[f"t(s{number})"] = seconds
        return found


def total(statistics: Mapping[str, Statistics], *, most: int) -> Statistics:
    """Return the sums over several members of an activation.

    `highest_active` is an upper bound, because the members' maxima needn't have occurred at the same time.
    `samples` is empty, because the samples of single members can't be combined.

    Args:
        statistics: Statistics by the member's name, which precedes the member's refusals in the result.
        most: Maximum number of handlers that run at once, over all members.
    """
    found = statistics.values()
    return Statistics(
        counts=sum((each.counts for each in found), Counts()),
        active=sum(each.active for each in found),
        highest_active=min(most, sum(each.highest_active for each in found)),
        threads=sum(each.threads for each in found),
        in_flight=sum(each.in_flight for each in found),
        connections=sum(each.connections for each in found),
        since_commit=sum(each.since_commit for each in found),
        since_move=sum(each.since_move for each in found),
        redelivered_messages=sum(each.redelivered_messages for each in found),
        batch_ends=sum(each.batch_ends for each in found),
        calls=sum(each.calls for each in found),
        dead_lettered=sum(each.dead_lettered for each in found),
        last_failure=next((each.last_failure for each in found if each.last_failure), ""),
        outages=sum(each.outages for each in found),
        handler_seconds=sum(each.handler_seconds for each in found),
        samples=(),
        refused=tuple(f"{name}: {reason}" for name, each in statistics.items() for reason in each.refused),
    )


class Counters:
    """Counters of a run; the caller serialises access.

    Callers change an attribute directly if that is a simple addition.

    Args:
        calls: Calls of the handler in earlier runs.

    Attributes:
        began: Time on the clock at which the run began, or the statistics were reset.
        active: Handlers running now.
        connections: Number of connections that were opened.
        outages: Connections lost.
        handler_seconds: Time spent in the handler.
        committed: See `Counts`; likewise `rolled_back`, `parked`, `failed`, `in_doubt` and `repeated`.
    """

    def __init__(self, calls: int = 0) -> None:
        self._calls_before = calls
        self.began = 0.0
        self.delivered = self.redelivered = self.committed = self.rolled_back = 0
        self.moved = self.deleted = self.parked = self.failed = self.in_doubt = self.repeated = 0
        self.active = self.highest_active = self.connections = 0
        self.redelivered_messages = self.batch_ends = 0
        # Moves and deletions without a commit between them, and the number of commits before them.
        self._bypassed = self._committed_before = 0
        self.dead_lettered = self.outages = 0
        self.handler_seconds = 0.0
        self._last_failure: tuple[Failure, Iterable[str]] | None = None
        self._before = Counts()
        self._samples: list[float] = []
        self._next_sample = SAMPLE_POINTS[0]

    @property
    def calls(self) -> int:
        """Number of calls of the handler in this run and earlier runs, since the last `reset`."""
        return self._calls_before + self.delivered - self._before.delivered + self.batch_ends

    @property
    def settled(self) -> int:
        """Number of settled messages."""
        return self.committed + self.moved + self.deleted

    def deliver(self, seen: int, now: float) -> None:
        """Count a call of the handler with a message that was delivered `seen` times before."""
        self.delivered += 1
        self.active = active = self.active + 1
        if active > self.highest_active:  # noqa: PLR1730 - max() is called once for each message
            self.highest_active = active
        if seen:
            self.redelivered += 1
            self.redelivered_messages += seen == 1
        if self.delivered - self._before.delivered == self._next_sample:
            self._samples.append(now - self.began)
            taken = len(self._samples)
            self._next_sample = SAMPLE_POINTS[taken] if taken < len(SAMPLE_POINTS) else 0

    def end_batch(self) -> None:
        """Count a call of the handler with an EndOfBatch message."""
        self.batch_ends += 1
        self.active += 1
        self.highest_active = max(self.highest_active, self.active)

    def undeliver(self, seen: int) -> None:
        """Undo the count of a delivery whose handler could not be called."""
        self.delivered -= 1
        if seen:
            self.redelivered -= 1
            self.redelivered_messages -= seen == 1

    def reset(self, now: float) -> None:
        """Let `statistics` count from `now` on; `counts` still counts from the start of the run.

        The statistics `dead_lettered`, `outages` and `handler_seconds` aren't reset.

        Source: J120.
        """
        self._before = self.counts()
        self.began = now
        self.highest_active = self.active
        self.connections = self.redelivered_messages = self._bypassed = 0
        self._committed_before = self.committed
        self.batch_ends = self._calls_before = 0
        self._samples.clear()
        self._next_sample = SAMPLE_POINTS[0]

    def note_failure(self, failure: Failure, secrets: Iterable[str]) -> None:
        """Note the exception of a handler, for `last_failure`. Needs no lock.

        Args:
            failure: The exception.
            secrets: Texts that `last_failure` leaves out.
        """
        self._last_failure = failure, secrets

    @property
    def last_failure(self) -> str:
        """Class and text of the last exception of a handler, without secrets; empty if there was none."""
        if self._last_failure is None:
            return ""
        failure = without_secrets(*self._last_failure)
        return f"{failure.class_name}: {failure.message}"

    def bypass(self, *, moved: int = 0, deleted: int = 0, dead_lettered: int = 0) -> None:
        """Count messages moved or deleted instead of delivered; `dead_lettered` of them had failed."""
        self.moved += moved
        self.dead_lettered += dead_lettered
        self.deleted += deleted
        if self.committed > self._committed_before:
            self._bypassed, self._committed_before = 0, self.committed
        self._bypassed += moved + deleted

    def counts(self) -> Counts:
        """Return the counts so far."""
        return Counts(
            delivered=self.delivered,
            redelivered=self.redelivered,
            committed=self.committed,
            rolled_back=self.rolled_back,
            moved=self.moved,
            deleted=self.deleted,
            parked=self.parked,
            failed=self.failed,
            in_doubt=self.in_doubt,
            repeated=self.repeated,
        )

    def statistics(self, *, threads: int, in_flight: int, refused: tuple[str, ...] = ()) -> Statistics:
        """Return a snapshot of the counters.

        Args:
            threads: Threads in the pool now.
            in_flight: Messages received and not settled.
            refused: See `Statistics.refused`.
        """
        since_move = self.committed - self._committed_before
        return Statistics(
            counts=self.counts() - self._before,
            active=self.active,
            highest_active=self.highest_active,
            threads=threads,
            in_flight=in_flight,
            connections=self.connections,
            since_commit=0 if since_move else self._bypassed,
            since_move=since_move,
            redelivered_messages=self.redelivered_messages,
            samples=tuple(self._samples),
            refused=refused,
            batch_ends=self.batch_ends,
            calls=self.calls,
            dead_lettered=self.dead_lettered,
            last_failure=self.last_failure,
            outages=self.outages,
            handler_seconds=self.handler_seconds,
        )
