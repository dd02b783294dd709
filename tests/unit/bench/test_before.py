"""How the benchmark compares two checkouts."""

from __future__ import annotations

import statistics

import pytest

from tests.bench.before import compared


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ([(100.0, 97.0)] * 5, "0.970 [0.970, 0.970]"),
        ([(1.0, 2.0), (2.0, 1.0)], "1.000 [0.500, 2.000]"),
    ],
)
def test_the_mean_of_ratios_and_how_sure_it_is(pairs: list[tuple[float, float]], said: str) -> None:
    assert compared(pairs, statistics.geometric_mean) == said
