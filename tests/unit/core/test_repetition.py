from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_provider_jmsjca.core.backoff import pause


@pytest.mark.parametrize(
    ("interval", "repeats", "deliveries", "seconds"),
    [
        (10, 0, 0, 10),
        (10, 1, 0, 20),
        (10, 4, 0, 160),
        (10, 5, 0, 300),
        (10, 10_000, 0, 300),
        (10, 0, 1, 10),
        (10, 0, 2, 20),
        (10, 0, 9, 2560),
        (10, 0, 10, 3600),
        (10, 3, 2, 80),
        (7200, 9, 9, 7200),
    ],
)
def test_pauses(interval: int, repeats: int, deliveries: int, seconds: int) -> None:
    found = pause(timedelta(seconds=interval), repeats=repeats, deliveries=deliveries)
    assert found == timedelta(seconds=seconds)
