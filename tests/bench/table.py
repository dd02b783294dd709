"""Medians, ratios and goals, as lines."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tests.bench.rates import (
    BARE,
    INDIVIDUAL,
    INDIVIDUAL_SEVERAL,
    JAVA,
    LISTENER,
    LISTENER_BATCH,
    LISTENER_BATCH_FEW,
    LISTENER_BATCH_SEVERAL,
    LISTENER_CC,
    LISTENER_STORED,
    OURS,
    PLAIN,
    PUBLISH,
    PUBLISH_BULK,
    PUBLISH_BYTES,
    PUBLISH_BYTES_BULK,
    SEALED,
    TRANSACTED,
    Measured,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What our rate has to reach.

    Attributes:
        what: Which work of ours.
        rival: Whose rate it is measured by; `None` for messages per second.
        beside: Which work of the rival; `None` means the same as ours.
        least: The smallest ratio, or rate, that meets it.
    """

    what: str
    rival: str | None
    beside: str | None = None
    least: float


GOALS = (
    Goal(what=PUBLISH_BULK, rival=JAVA, beside=PUBLISH, least=0.9),
    Goal(what=PUBLISH_BYTES_BULK, rival=JAVA, beside=PUBLISH_BYTES, least=0.9),
    Goal(what=PUBLISH, rival=JAVA, least=0.9),
    Goal(what=PUBLISH_BYTES, rival=JAVA, least=0.9),
    Goal(what=INDIVIDUAL, rival=PLAIN, least=1.0),
    Goal(what=LISTENER, rival=JAVA, beside=INDIVIDUAL, least=0.8),
    Goal(what=LISTENER, rival=PLAIN, beside=INDIVIDUAL, least=1.5),
    Goal(what=LISTENER_CC, rival=JAVA, beside=INDIVIDUAL_SEVERAL, least=0.8),
    *(
        Goal(what=each, rival=OURS, beside=TRANSACTED, least=0.6)
        for each in (LISTENER_BATCH, LISTENER_BATCH_FEW, LISTENER_BATCH_SEVERAL)
    ),
    Goal(what=LISTENER_STORED, rival=OURS, beside=LISTENER_BATCH, least=0.75),
    Goal(what=TRANSACTED, rival=JAVA, least=0.8),
    Goal(what=SEALED, rival=None, least=12_000),
)


def medians(measured: Iterable[Measured]) -> dict[tuple[str, str], Measured]:
    """Return the median of each figure, by work and rival, in the order of the work."""
    return {
        (what, who): Measured(
            what=what,
            who=who,
            per_second=statistics.median(one.per_second for one in group),
            client=statistics.median(one.client for one in group),
            broker=statistics.median(one.broker for one in group),
        )
        for (what, who), group in _groups(measured).items()
    }


def _groups(measured: Iterable[Measured]) -> dict[tuple[str, str], list[Measured]]:
    groups: defaultdict[tuple[str, str], list[Measured]] = defaultdict(list)
    for one in measured:
        groups[one.what, one.who].append(one)
    return groups


def rows(found: Mapping[tuple[str, str], Measured]) -> Iterator[str]:
    """Yield a line for each median, grouped by the work."""
    for what in dict.fromkeys(what for what, _ in found):
        for (each, _), one in found.items():
            if each == what:
                yield f"  {row(one)}"


def row(one: Measured) -> str:
    """Return a measurement as a line."""
    return (
        f"{one.per_second:>9,.0f}/s  {one.client:>6.0f} µs  {one.broker:>6.0f} µs  {one.who:<12}  {one.what}"
    )


def verdicts(measured: Iterable[Measured], missing: Mapping[str, str]) -> Iterator[tuple[bool | None, str]]:
    """Yield for each goal whether it is met (`None`: not measured) and a line that says so.

    A ratio is the median of the rounds' ratios: what slows a whole round down slows both.

    Args:
        measured: What each round found, in the order of the rounds.
        missing: Why a rival didn't run, by its name.
    """
    groups = _groups(measured)
    for goal in GOALS:
        ours = [one.per_second for one in groups[goal.what, OURS]]
        if goal.rival is None:
            rate = statistics.median(ours)
            yield _verdict(goal, rate, f"{rate:,.0f}/s", f"{goal.least:,.0f}/s")
            continue
        beside = goal.beside or goal.what
        rival = goal.rival + (f" ({goal.beside})" if goal.beside else "")
        theirs = [one.per_second for one in groups.get((beside, goal.rival), ())]
        if not theirs:
            why = missing.get(goal.rival, "it doesn't do that")
            yield (
                None,
                f"  not measured  {goal.what}: goal {goal.least:g} x {rival}; {goal.rival} is missing: {why}",
            )
            continue
        ratio = _ratio(ours, theirs)
        yield _verdict(goal, ratio, _shown(ratio), f"{goal.least:g} x {rival}")


def bounds(measured: Iterable[Measured]) -> Iterator[str]:
    """Yield a line for each work that a bare socket did too: how far clients over STOMP get at best.

    Rates depend on how many threads compete for the processors. The time that client and broker take of them
    for each message doesn't, and nobody gets more messages through processors that are busy all the time.
    """
    groups = _groups(measured)
    for what, beside in (
        (PUBLISH, PUBLISH),
        (PUBLISH_BYTES, PUBLISH_BYTES),
        (LISTENER_CC, INDIVIDUAL_SEVERAL),
    ):
        best, java, ours = (groups.get(key, ()) for key in ((what, BARE), (beside, JAVA), (what, OURS)))
        if best and java:
            rival = JAVA if what == beside else f"{JAVA} ({beside})"
            rates = [[one.per_second for one in group] for group in (best, java, ours)]
            times = [[one.client + one.broker for one in group] for group in (best, java, ours)]
            bare, we = _shown(_ratio(rates[0], rates[1])), _shown(_ratio(rates[2], rates[0]))
            yield (
                f"  bound         {what}: a bare socket reaches {bare} {rival}; we reach {we} {BARE}; "
                "by processor time "
                f"{_shown(_ratio(times[1], times[0]))} and {_shown(_ratio(times[0], times[2]))}"
            )


def _ratio(ours: Iterable[float], theirs: Iterable[float]) -> float:
    return statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True))


def _shown(ratio: float) -> str:
    return f"{math.floor(ratio * 100) / 100:.2f} x"


def _verdict(goal: Goal, reached: float, shown: str, least: str) -> tuple[bool, str]:
    met = reached >= goal.least
    return met, f"  {'met' if met else 'NOT MET':<12}  {goal.what}: {shown}, goal {least}"
