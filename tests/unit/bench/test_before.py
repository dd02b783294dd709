"""How the benchmark compares two checkouts."""

from __future__ import annotations

import pytest

from tests.bench.before import compared, of_middle, of_sums


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ([(100.0, 97.0)] * 5, "0.970 [0.970, 0.970]"),
        ([(1.0, 1.0), (1.0, 2.0), (1.0, 1.0)], "1.000 [1.000, 2.000]"),
    ],
)
def test_the_ratio_and_how_sure_it_is(pairs: list[tuple[float, float]], said: str) -> None:
    assert compared(pairs, of_middle) == said


def test_one_slow_slice_shifts_no_rate_and_a_clock_that_ticks_slowly_no_time() -> None:
    assert of_middle([(10.0, 10.0), (10.0, 1.0), (10.0, 10.0)]) == 1.0
    assert of_sums([(0.0, 10.0), (10.0, 0.0), (10.0, 10.0)]) == 1.0
