"""This checkout beside an earlier one: slices of work in turns, over one broker."""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

from tests.servers.broker import Broker
from tests.servers.errors import ServerError
from tests.servers.folders import ROOT

_SLICES: Final = """
import json, sys
from pathlib import Path
from tests.bench.ours import Ours
from tests.servers.catalogue import make_broker

kept = Path(sys.argv[2], "ports.json")
ports = kept.read_text(encoding="utf-8")
broker = make_broker(sys.argv[1], Path(sys.argv[2]))
kept.write_text(ports, encoding="utf-8")  # a checkout that names other ports takes fresh ones
broker.ports = json.loads(ports)
assert broker.adopt()
legs = Ours(broker).legs()
print(json.dumps(list(legs)), flush=True)
for line in sys.stdin:
    leg, messages = json.loads(line)
    print(json.dumps([(one.what, one.per_second, one.client) for one in legs[leg](messages)]), flush=True)
"""
"""Run in either checkout: it may use only what both have."""


def report(broker: Broker, before: Path, messages: int, rounds: int) -> Iterator[str]:
    """Yield a line for each work that both checkouts know: rates, and how they compare.

    A slice of the one is followed by the same slice of the other, and the next round has them the other way
    round. What slows the machine for seconds slows both.

    Args:
        broker: It runs.
        before: The earlier checkout.
        messages: For each slice.
        rounds: How often; one more before them warms up.
    """
    with ExitStack() as opened:
        earlier, ours = (opened.enter_context(_Checkout(path, broker)) for path in (before, ROOT))
        legs = [leg for leg in ours.legs if leg in earlier.legs]
        pairs = defaultdict(list)
        for number in range(rounds + 1):
            for leg in legs:
                turn = (earlier, ours) if number % 2 else (ours, earlier)
                found = {one: one.work(leg, messages) for one in turn}
                for what in found[ours].keys() & found[earlier].keys() if number else ():
                    pairs[what].append((found[earlier][what], found[ours][what]))
    yield f"  messages per second before and now, now by before; the same of processor time; {rounds} slices"
    for what, each in pairs.items():
        rates, times = ([(then[i], now[i]) for then, now in each] for i in (0, 1))
        then, now = (statistics.median(column) for column in zip(*rates, strict=True))
        rate, cost = compared(rates, of_middle), compared(times, of_sums)
        yield f"  {then:>9,.0f}  {now:>9,.0f}  {rate};  {cost}  {what}"


_Pairs = Sequence[tuple[float, float]]


def of_middle(pairs: _Pairs) -> float:
    """Return the median of second by first: a broker that once stands still in a slice doesn't shift it."""
    return statistics.median(now / then for then, now in pairs)


def of_sums(pairs: _Pairs) -> float:
    """Return the sum of the second by that of the first: the clocks of processors tick slowly."""
    then, now = (sum(column) for column in zip(*pairs, strict=True))
    return now / then


def compared(pairs: _Pairs, ratio: Callable[[_Pairs], float]) -> str:
    """Return the ratio, and where 95 % of those of resampled pairs lie.

    Args:
        pairs: Figures of slices that followed one another.
        ratio: Of such pairs.
    """
    drawn = random.Random(0)  # noqa: S311 - nothing secret
    ratios = sorted(ratio(drawn.choices(pairs, k=len(pairs))) for _ in range(2000))
    return f"{ratio(pairs):.3f} [{ratios[50]:.3f}, {ratios[-51]:.3f}]"


class _Checkout:
    """A process that works with the package of a checkout."""

    def __init__(self, path: Path, broker: Broker) -> None:
        self._path = path
        self._process = subprocess.Popen(  # in that folder, its modules come before the installed ones
            [sys.executable, "-c", _SLICES, broker.name, str(broker.folder)],
            cwd=path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        self.legs: list[str] = self._answer()
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()

    def work(self, leg: str, messages: int) -> dict[str, tuple[float, float]]:
        """Return messages per second, and processor time for each in microseconds, by what was done."""
        assert self._process.stdin is not None
        print(json.dumps((leg, messages)), file=self._process.stdin, flush=True)
        return {what: (rate, client) for what, rate, client in self._answer()}

    def _answer(self) -> list:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ServerError(f"The benchmark of the checkout {self._path} ended; its error stands above.")
        return json.loads(line)
