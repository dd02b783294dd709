"""Which action a count asks for: J130, J134, J137, J137b, J141, J148."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.core.redelivery import (
    Action,
    Delay,
    Delete,
    GrowingDelay,
    Move,
    MoveKind,
    MoveTarget,
    RedeliveryHandling,
    slices,
)
from airflow_provider_jmsjca.errors import ConfigurationError


def milliseconds(action: Action | None) -> int:
    return action.milliseconds if isinstance(action, Delay) else 0


def test_j137b_published_vector() -> None:
    handling = RedeliveryHandling.parse("5:10; 6:15; 10:30; 15:move(queue:a)")
    delays = [milliseconds(handling.action_for(seen)) for seen in range(15)]
    assert delays == [0, 0, 0, 0, 0, 10, 15, 15, 15, 15, 30, 30, 30, 30, 30]
    assert sum(delays) == 220
    assert handling.action_for(15) == Move(15, MoveKind.QUEUE, "a")


def test_j134_c6_steps() -> None:
    """From the count that is named, not after it."""
    handling = RedeliveryHandling.parse("5:1000; 10:5000; 50:move(queue:mydlq)")
    assert handling.action_for(0) is None
    assert handling.action_for(4) is None
    assert handling.action_for(5) == Delay(5, 1000)
    assert handling.action_for(9) == Delay(5, 1000)
    assert handling.action_for(10) == Delay(10, 5000)
    assert handling.action_for(49) == Delay(10, 5000)
    assert handling.action_for(50) == Move(50, MoveKind.QUEUE, "mydlq")
    assert handling.action_for(51) == Move(50, MoveKind.QUEUE, "mydlq")


def test_j137_the_last_delay_applies_for_ever() -> None:
    """P5."""
    assert RedeliveryHandling.parse("5:1000; 10:5000").action_for(10**9) == Delay(10, 5000)


def test_c11_deletes_at_the_count() -> None:
    handling = RedeliveryHandling.parse("2:5; 3:delete")
    assert [handling.action_for(seen) for seen in (1, 2, 3)] == [None, Delay(2, 5), Delete(3)]


@pytest.mark.parametrize(
    ("seen", "delay"),
    [
        (0, 0),
        (2, 0),
        (3, 25),
        (4, 25),
        (5, 50),
        (9, 50),
        (10, 100),
        (19, 100),
        (20, 1000),
        (49, 1000),
        (50, 5000),
    ],
)
def test_j148_c3_default(seen: int, delay: int) -> None:
    assert milliseconds(RedeliveryHandling.DEFAULT.action_for(seen)) == delay


def test_j148_default_text() -> None:
    assert str(RedeliveryHandling.DEFAULT) == "3:25; 5:50; 10:100; 20:1000; 50:5000"
    assert RedeliveryHandling.parse("3:25; 5:50; 10:100; 20:1000; 50:5000") == RedeliveryHandling.DEFAULT


def test_j138_empty_means_no_handling() -> None:
    assert RedeliveryHandling.parse("").action_for(1_000_000) is None
    assert str(RedeliveryHandling.parse("")) == ""


def test_j141_long_delays_come_in_slices() -> None:
    def seconds(pause: float) -> list[float]:
        return [piece.total_seconds() for piece in slices(timedelta(seconds=pause))]

    assert seconds(0) == []
    assert seconds(4.999) == [4.999]
    assert seconds(5) == [5]
    assert seconds(12.5) == [5, 5, 2.5]


def test_backoff_grows_to_its_limit() -> None:
    backoff = GrowingDelay(3, 100, 2.0, 1000)
    pauses = [
        backoff.pause(seen, 0.9) // timedelta(milliseconds=1) for seen in (3, 4, 5, 6, 7, 8, 50_000_000)
    ]
    assert pauses == [100, 200, 400, 800, 1000, 1000, 1000]
    assert backoff.pause(1, 0.0) == timedelta(milliseconds=100), "no shorter before its count"


def test_backoff_jitter_only_shortens() -> None:
    backoff = GrowingDelay(1, 1000, 1.0, 1000, 0.5)
    assert backoff.pause(7, 0.0) == timedelta(milliseconds=1000)
    assert backoff.pause(7, 0.5) == timedelta(milliseconds=750)
    assert backoff.pause(7, 0.999) >= timedelta(milliseconds=500)


def test_j139_values_refuse_what_the_grammar_refuses() -> None:
    with pytest.raises(ConfigurationError, match="must be the last entry"):
        RedeliveryHandling((Delete(1), Delay(2, 5)))
    with pytest.raises(ConfigurationError, match="the count is 0"):
        Delay(0, 5)
    with pytest.raises(ConfigurationError, match="the delay is -1 ms"):
        Delay(1, -1)
    with pytest.raises(ConfigurationError, match=r"the jitter is -0\.5"):
        GrowingDelay(1, 1, 2.0, 3, -0.5)
    with pytest.raises(ConfigurationError) as caught:
        Move(0, MoveKind.QUEUE, " a")
    assert caught.value.faults == (
        "the count is 0; expected 1 to 50000000",
        "the destination name ' a' begins or ends with a blank",
    )
    for name in ("", " a", "a;b", "a,queue:b", "a\nb"):
        with pytest.raises(ConfigurationError):
            MoveTarget(MoveKind.QUEUE, name)


def test_kind_may_be_given_as_text() -> None:
    assert Move(1, "queue", "a") == Move(1, MoveKind.QUEUE, "a")  # type: ignore[arg-type]


def test_a_destination_is_a_target() -> None:
    destination = Destination(DestinationKind.TOPIC, "t", (("prefetch", "1"),))
    target = MoveTarget.of(destination)
    assert target == MoveTarget(MoveKind.TOPIC, "t", (("prefetch", "1"),))
    assert target.destination(Destination.queue("orders")) == destination
