"""Medians, ratios and goals, as lines."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tests.bench.rates import (
    INDIVIDUAL,
    JAVA,
    LISTENER,
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
    Goal(what=TRANSACTED, rival=JAVA, least=0.8),
    Goal(what=SEALED, rival=None, least=12_000),
)


def medians(measured: Iterable[Measured]) -> dict[tuple[str, str], Measured]:
    """Return the median of each figure, by work and rival, in the order of the work."""
    groups: defaultdict[tuple[str, str], list[Measured]] = defaultdict(list)
    for one in measured:
        groups[one.what, one.who].append(one)
    return {
        (what, who): Measured(
            what=what,
            who=who,
            per_second=statistics.median(one.per_second for one in group),
            client=statistics.median(one.client for one in group),
            broker=statistics.median(one.broker for one in group),
        )
        for (what, who), group in groups.items()
    }


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


def verdicts(
    found: Mapping[tuple[str, str], Measured], missing: Mapping[str, str]
) -> Iterator[tuple[bool | None, str]]:
    """Yield for each goal whether it is met (`None`: not measured) and a line that says so.

    Args:
        found: The medians.
        missing: Why a rival didn't run, by its name.
    """
    for goal in GOALS:
        ours = found[goal.what, OURS].per_second
        if goal.rival is None:
            met = ours >= goal.least
            yield met, _line(met, goal.what, f"{ours:,.0f}/s", f"{goal.least:,.0f}/s")
            continue
        beside = goal.beside or goal.what
        least = f"{goal.least:g} x {goal.rival}" + (f" ({goal.beside})" if goal.beside else "")
        theirs = found.get((beside, goal.rival))
        if theirs is None:
            why = missing.get(goal.rival, "it doesn't do that")
            yield None, f"  not measured  {goal.what}: goal {least}; {goal.rival} is missing: {why}"
            continue
        ratio = ours / theirs.per_second
        yield (
            ratio >= goal.least,
            _line(ratio >= goal.least, goal.what, f"{math.floor(ratio * 100) / 100:.2f} x", least),
        )


def _line(met: bool, what: str, reached: str, least: str) -> str:
    return f"  {'met' if met else 'NOT MET':<12}  {what}: {reached}, goal {least}"
