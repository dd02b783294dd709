from __future__ import annotations

import math

import pytest

from airflow_provider_jmsjca.core.quantities import count_faults, seconds_faults


@pytest.mark.parametrize("value", [1, 0.001, 86_400.0])
def test_seconds(value: float) -> None:
    assert seconds_faults("run_for", value) == []


@pytest.mark.parametrize("value", [0, -1, "5", None, True, math.nan, math.inf, 1e20])
def test_no_seconds(value: object) -> None:
    assert seconds_faults("run_for", value, otherwise="None for no such end") == [
        f"run_for is {value!r}; expected seconds above 0, or None for no such end"
    ]


def test_seconds_that_may_be_none_at_all() -> None:
    assert seconds_faults("delay", 0, minimum=0) == []
    assert seconds_faults("delay", -5, minimum=0) == ["delay is -5; expected seconds of at least 0"]


def test_messages() -> None:
    assert count_faults("max_messages", 1) == []


@pytest.mark.parametrize("value", [0, -1, "10", 1.5, True, None])
def test_no_messages(value: object) -> None:
    assert count_faults("max_messages", value) == [
        f"max_messages is {value!r}; expected a whole number of at least 1"
    ]
