"""DAGs whose schedule refers to a watched asset by name or URI, with Airflow's scheduler making the runs."""

# ruff: noqa: PLC0415 - the scheduler's side is imported after the home is set

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from airflow.sdk import DAG, Asset

from airflow_provider_jmsjca.triggers.payload import outcome_key
from tests.airflow.task_runs import serialized
from tests.unit.engine.listening import until

pytestmark = [
    pytest.mark.usefixtures("metadata"),
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error:::airflow_provider_jmsjca"),
]
ORDERS = Asset(name="orders", uri="jms://broker/queue/orders")


class Scheduler:
    """Airflow's scheduler, one step at a time, in one session."""

    def __init__(self, *dags: DAG) -> None:
        from airflow import settings
        from airflow.jobs.job import Job
        from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
        from airflow.models.asset import AssetModel
        from airflow.models.dag import DagModel
        from sqlalchemy import select, update

        for dag in dags:
            serialized(dag)
        self.session = settings.get_session()()
        self.session.execute(update(DagModel).values(is_paused=False))
        self.session.commit()
        self.asset_id = self.session.scalar(select(AssetModel.id).where(AssetModel.name == ORDERS.name))
        self._runner = SchedulerJobRunner(Job())

    def store(self, payload: dict[str, Any], **more: Any) -> None:
        """Store an event as the triggerer does."""
        from airflow.assets.manager import AssetManager
        from airflow.models.asset import AssetModel

        asset = self.session.get(AssetModel, self.asset_id)
        extra = {"from_trigger": True, "payload": payload} | more
        AssetManager.register_asset_change(asset=asset, extra=extra, session=self.session)
        self.session.commit()

    def make_runs(self) -> None:
        from airflow.models.dag import DagModel

        models, dates = DagModel.dags_needing_dagruns(self.session)
        self._runner._create_dag_runs_asset_triggered(
            dag_models=[model for model in models if model.dag_id in dates], session=self.session
        )
        self.session.commit()

    def start_runs(self) -> None:
        from airflow.models.dagrun import DagRun
        from sqlalchemy import func, select

        newest = self.session.scalar(select(func.max(DagRun.run_after)))
        assert newest is not None
        # SQLite's clock has whole seconds, and Airflow starts no run that is due later than that.
        until(lambda: int(time.time()) > newest.timestamp())
        self._runner._start_queued_dagruns(self.session)
        self.session.commit()

    def runs(self, dag_id: str) -> list[Any]:
        from airflow.models.dagrun import DagRun
        from sqlalchemy import select

        self.session.expire_all()
        return list(self.session.scalars(select(DagRun).filter_by(dag_id=dag_id).order_by(DagRun.run_after)))

    def numbers(self, dag_id: str) -> list[list[int]]:
        """Return the numbers of the events that each run of a DAG has."""
        return [
            [event.extra["payload"]["number"] for event in run.consumed_asset_events]
            for run in self.runs(dag_id)
        ]

    def word(self, number: int) -> Any:
        """Return what the runs have said of a held message."""
        from airflow.state import AssetScope, get_state_backend

        scope = AssetScope(asset_id=self.asset_id)
        found = get_state_backend().get(scope, outcome_key(f"t{number}"), session=self.session)
        return None if found is None else json.loads(found)["acknowledged"]

    def end(self, run: Any, state: str) -> None:
        run.state = state
        self.session.flush()
        run.notify_dagrun_state_changed(msg=state)
        self.session.commit()

    def close(self) -> None:
        self.session.rollback()
        self.session.close()


def dag(name: str, *schedule: Any, **more: Any) -> DAG:
    from airflow.providers.standard.operators.empty import EmptyOperator

    with DAG(name, schedule=list(schedule), **more) as made:
        EmptyOperator(task_id="nothing")
    return made


def event(number: int) -> dict[str, Any]:
    return {"event": "message", "jms_conn_id": "jms", "number": number}


def held(number: int) -> dict[str, Any]:
    keys = [f"jms-hold.{number}"]
    return event(number) | {"hold": {"token": f"t{number}", "of": 1, "keys": keys}}


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
