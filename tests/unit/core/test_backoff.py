from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_provider_jmsjca.core.backoff import RECONNECT, Backoff, pause
from airflow_provider_jmsjca.errors import ConfigurationError


def seconds(backoff: Backoff, failures: int, random: float = 0.0) -> float:
    return backoff.wait(failures, random).total_seconds()


def test_j122_reconnects_after_1_2_5_5_10_seconds_then_every_10() -> None:
    assert [seconds(RECONNECT, failures) for failures in range(1, 9)] == [1, 2, 5, 5, 10, 10, 10, 10]
    assert seconds(RECONNECT, 1_000_000) == 10


def test_jitter_only_ever_shortens() -> None:
    assert [seconds(RECONNECT, 5, random) for random in (0.0, 0.5, 1.0)] == [10, 9, 8]


def test_before_the_first_failure_the_first_step_holds() -> None:
    assert seconds(RECONNECT, 0) == 1


def test_every_fault_is_named() -> None:
    with pytest.raises(ConfigurationError) as refused:
        Backoff(steps=(timedelta(seconds=-1),), jitter=1.5)
    assert len(refused.value.faults) == 2
    with pytest.raises(ConfigurationError, match="at least one step"):
        Backoff(steps=())


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
