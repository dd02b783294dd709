"""The verdict on collecting: quick enough by itself, or beside a plain drain of the same queue."""

from __future__ import annotations

import pytest

from tests.bench.pipeline import verdict_on_sealed


@pytest.mark.parametrize(
    ("sealed", "drained", "verdict"),
    [
        (20_000, 100_000, "met"),
        (19_999, 100_000, "NOT MET"),
        (6_000, 10_000, "met"),
        (5_999, 10_000, "NOT MET"),
    ],
)
def test_a_rate_or_a_share_meets_the_goal(sealed: float, drained: float, verdict: str) -> None:
    line = verdict_on_sealed(sealed, drained)
    assert line.split("  ")[1] == verdict
    assert line.endswith("goal 20,000/s or 0.6 x")
