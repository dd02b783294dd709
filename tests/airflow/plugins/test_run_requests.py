"""One DAG run for each event whose messages are held, with Airflow's scheduler making the runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from airflow.sdk import Asset

from tests.airflow.scheduler import ORDERS, Scheduler, dag, event, held

pytestmark = [
    pytest.mark.usefixtures("metadata"),
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error:::airflow_provider_jmsjca"),
]
OTHER = Asset(name="other", uri="jms://broker/queue/other")
DAGS = ("direct", "slow", "name", "uri")


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    made = Scheduler(
        dag("direct", ORDERS),
        dag("slow", ORDERS, max_active_runs=1),
        dag("name", Asset.ref(name=ORDERS.name)),
        dag("uri", Asset.ref(uri=ORDERS.uri)),
        dag("both", ORDERS, OTHER),
    )
    yield made
    made.close()


def test_each_held_message_has_a_run_of_its_own(scheduler: Scheduler) -> None:
    for number in (1, 2, 3):
        scheduler.store(held(number))
    scheduler.make_runs()
    scheduler.store(held(4))  # between the making of a run and its start
    for _ in range(4):
        scheduler.start_runs()
        scheduler.make_runs()
    for name in ("direct", "name", "uri"):
        assert scheduler.numbers(name) == [[1], [2], [3], [4]], name
    assert scheduler.numbers("slow") == [[1]]
    scheduler.store(held(5), of=scheduler.other_id)
    scheduler.make_runs()
    assert scheduler.numbers("both") == [[1, 2, 3, 4, 5]]


def test_a_failed_run_fails_no_other_message_and_slow_dags_are_waited_for(scheduler: Scheduler) -> None:
    scheduler.store(held(1))
    scheduler.store(held(2))
    for _ in range(2):
        scheduler.make_runs()
        scheduler.start_runs()
    for name in ("direct", "name", "uri"):
        first, second = scheduler.runs(name)
        scheduler.end(first, "success")
        scheduler.end(second, "failed" if name == "direct" else "success")
    assert [scheduler.outcome(number) for number in (1, 2)] == [None, False]
    (run,) = scheduler.runs("slow")
    scheduler.end(run, "success")
    assert scheduler.outcome(1) is True
    scheduler.make_runs()
    scheduler.start_runs()
    assert scheduler.numbers("slow") == [[1], [2]]


@pytest.mark.parametrize("paused", [False, True])
def test_a_dag_without_a_run_for_the_message_is_awaited_unless_it_is_paused(
    scheduler: Scheduler, paused: bool
) -> None:
    scheduler.store(held(1))
    scheduler.store(held(2))
    for _ in range(2):
        scheduler.make_runs()
        scheduler.start_runs()
    if paused:
        scheduler.pause("slow")
    for name in ("direct", "name", "uri"):
        scheduler.end(scheduler.runs(name)[1], "success")
    assert scheduler.outcome(2) is (True if paused else None)
    assert scheduler.word(2) is True  # what counts at the end of `hold_timeout`


def test_messages_that_no_longer_wait_share_a_run(scheduler: Scheduler) -> None:
    for number in (1, 2, 3):
        scheduler.store(held(number))
    scheduler.forget(1)
    scheduler.forget(2)
    scheduler.store(held(4))
    for _ in range(2):
        scheduler.make_runs()
        scheduler.start_runs()
    assert scheduler.numbers("direct") == [[1, 2, 3], [4]]


def test_plain_events_share_a_run(scheduler: Scheduler) -> None:
    for number in (1, 2):
        scheduler.store(event(number))
    scheduler.make_runs()
    assert scheduler.numbers("direct") == [[1, 2]]


def test_the_time_to_hold_a_message_begins_with_its_run(scheduler: Scheduler) -> None:
    for number in (1, 2):
        scheduler.store(held(number))
    stored = scheduler.kept("jms-hold.1")
    scheduler.make_runs()
    scheduler.start_runs()
    started: Any = scheduler.kept("jms-hold.1")
    assert started["since"] > stored["since"]
    assert (started["started"], scheduler.kept("jms-started")) == (True, started["since"])
    assert "started" not in scheduler.kept("jms-hold.2")
