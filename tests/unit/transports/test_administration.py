"""Figures of queues that hold hostile messages."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from airflow_provider_jmsjca.transports.administration import oldest_time


@pytest.mark.parametrize(
    ("milliseconds", "time"),
    [
        (1_500, datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)),
        (0, None),
        (10**18, None),
        (-(10**18), None),
        (2**63 - 1, None),
    ],
)
def test_a_time_that_no_calendar_has_hides_no_queue(milliseconds: int, time: datetime | None) -> None:
    """A producer sets the timestamp; the queue must still be listed."""
    assert oldest_time(milliseconds) == time
