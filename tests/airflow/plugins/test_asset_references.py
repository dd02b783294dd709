"""DAGs whose schedule refers to a watched asset by name or URI, with Airflow's scheduler making the runs."""

# ruff: noqa: PLC0415 - the scheduler's side is imported after the home is set

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


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    made = Scheduler(
        dag("direct", ORDERS),
        dag("name", Asset.ref(name=ORDERS.name), max_active_runs=1),
        dag("uri", Asset.ref(uri=ORDERS.uri)),
        dag("twice", ORDERS, Asset.ref(name=ORDERS.name)),
    )
    yield made
    made.close()


def test_a_run_of_a_dag_that_refers_to_the_asset_has_each_event_once(scheduler: Scheduler) -> None:
    scheduler.store(event(1))
    scheduler.store(event(2))
    scheduler.make_runs()
    scheduler.start_runs()
    for name in ("direct", "name", "uri", "twice"):
        assert scheduler.numbers(name) == [[1, 2]], name
    scheduler.store(event(3))
    scheduler.make_runs()
    scheduler.start_runs()
    for name in ("direct", "uri", "twice"):
        assert scheduler.numbers(name) == [[1, 2], [3]], name
    (running,) = scheduler.runs("name")
    scheduler.end(running, "success")
    scheduler.make_runs()
    scheduler.start_runs()
    assert scheduler.numbers("name") == [[1, 2], [3]]


def test_a_run_that_is_cleared_keeps_its_events(scheduler: Scheduler) -> None:
    scheduler.store(event(1))
    scheduler.make_runs()
    scheduler.start_runs()
    scheduler.store(event(2))
    (first,) = scheduler.runs("name")
    first.state = "queued"
    scheduler.session.commit()
    scheduler.start_runs()
    assert scheduler.numbers("name") == [[1]]


def test_a_held_message_waits_for_a_run_that_is_queued(scheduler: Scheduler) -> None:
    for number in (1, 2):
        scheduler.store(held(number))
        scheduler.make_runs()
        if number == 1:
            scheduler.start_runs()
            (blocking,) = scheduler.runs("name")
            # Room for a second run in the queue, and none for it to start.
            scheduler.session.execute(_most_runs(2))
            scheduler.session.commit()
    scheduler.session.execute(_most_runs(1))
    scheduler.session.commit()
    scheduler.start_runs()
    assert [run.state for run in scheduler.runs("name")] == ["running", "queued"]
    for name in ("direct", "uri", "twice"):
        for run in scheduler.runs(name):
            scheduler.end(run, "success")
    assert (scheduler.word(1), scheduler.word(2)) == (None, None)
    scheduler.end(blocking, "success")
    assert (scheduler.word(1), scheduler.word(2)) == (True, None)
    scheduler.start_runs()
    scheduler.end(scheduler.runs("name")[1], "failed")
    assert scheduler.word(2) is False


def _most_runs(number: int) -> Any:
    from airflow.models.dag import DagModel
    from sqlalchemy import update

    return update(DagModel).where(DagModel.dag_id == "name").values(max_active_runs=number)


def test_events_of_others_are_left_to_airflow(scheduler: Scheduler) -> None:
    scheduler.store({"event": "other", "number": 1})
    scheduler.make_runs()
    scheduler.start_runs()
    assert scheduler.numbers("direct") == [[1]]
    assert scheduler.numbers("name") == [[]]
