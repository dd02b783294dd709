"""When a run ends because the same messages only fail; no time passes but on a clock of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, cast

import pytest

from airflow_provider_jmsjca.core.delivery.settings import DeliverySettings
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.redelivery import RedeliveryHandling
from airflow_provider_jmsjca.engine.activations.limits import RunLimits
from airflow_provider_jmsjca.engine.activations.listener import Listener, RunMonitor
from airflow_provider_jmsjca.engine.collecting.batch_spec import EndReason
from airflow_provider_jmsjca.engine.delivering.statistics import Counts
from tests.unit.engine.listening import QUICK, Site, fail

SETTINGS = DeliverySettings(destination=Destination.queue("orders"))
SECOND = timedelta(seconds=1)
FAILED = Counts(delivered=1, redelivered=1, rolled_back=1)
PARKED = replace(FAILED, parked=1)
FIRST = Counts(delivered=1, rolled_back=1)
SETTLED = Counts(delivered=1, committed=1)


@pytest.fixture
def site() -> Site:
    return Site()


@dataclass
class _Running:
    """An activation to which one thing happens each second.

    Attributes:
        settings: How it consumes.
        happens: Returns what changes in a second, given its number.
        failing: As of an activation.
    """

    settings: Any
    happens: Callable[[int], Counts]
    failing: int | None = 1
    looks: bool = False
    blocked: bool = False
    now: int = 0
    counts: Counts = field(default_factory=lambda: FIRST)

    def await_end(self, _: float) -> bool:
        self.now += 1
        self.counts += self.happens(self.now)
        return self.now == 1_000

    def idle_since(self) -> None:
        return None


def ends_after(
    happens: Callable[[int], Counts], *, handling: str = "1:1", concurrency: int = 1, failing: int | None = 1
) -> int | None:
    """Return after how many seconds a run ends for its failures; `None`: it doesn't."""
    settings = replace(SETTINGS, handling=RedeliveryHandling.parse(handling), concurrency=concurrency)
    running = _Running(type("Settings", (), {"delivery": settings}), happens, failing)
    watch = RunMonitor(
        run_ends=RunLimits(failure_timeout=SECOND * 5),
        stop=None,
        within=SECOND,
        within_if_stopped=None,
        progress=None,
        progress_every=SECOND,
        clock=lambda: float(running.now),
    )
    found = watch.until_end(cast("Listener", running))
    assert found is None or found[0] is EndReason.FAILURES
    return None if found is None else running.now


def test_ten_failures_more_than_the_last_action_names() -> None:
    assert ends_after(lambda _: FAILED) == 12
    assert ends_after(lambda _: FAILED, handling="1:1; 40:2") == 51


def test_a_message_that_is_parked_again_and_again_only_fails() -> None:
    assert ends_after(lambda _: PARKED, handling="1:6000") == 12


def test_one_message_needs_no_more_failures_in_a_pool() -> None:
    assert ends_after(lambda _: FAILED, concurrency=15) == 12


@pytest.mark.parametrize("concurrency", [1, 15])
def test_each_message_that_fails_may_fail_so_often(concurrency: int) -> None:
    """Also one after the other, as parked ones do."""
    assert ends_after(lambda _: FAILED, concurrency=concurrency, failing=3) == 34


def test_what_another_handler_does_is_waited_for() -> None:
    assert ends_after(lambda _: FAILED, concurrency=15, failing=None) is None


def test_what_has_just_happened_is_not_in_the_counts_yet() -> None:
    assert ends_after(lambda _: FAILED, failing=0) is None


@pytest.mark.parametrize("other", [FIRST, SETTLED], ids=["delivered first", "settled"])
def test_all_begins_anew_when_anything_else_happens(other: Counts) -> None:
    assert ends_after(lambda now: other if now % 10 == 0 else PARKED) is None
    assert ends_after(lambda now: other if now == 10 else PARKED) == 21


@pytest.mark.parametrize("messages", [1, 3])
def test_a_pool_fails_no_more_often_than_its_messages_need(site: Site, messages: int) -> None:
    site.send(*map(str, range(messages)))
    listener = site.activation(
        fail, redelivery_handling="1:100", concurrency_mode="cc", endpoint_pool_max_size=15
    )
    counts = listener.run(idle_for=QUICK, run_for=SECOND * 20)
    assert listener.ended_by is EndReason.FAILURES
    assert 11 * messages <= counts.rolled_back < 11 * 14
    assert all(site.got.count(str(number)) >= 10 for number in range(messages))
