"""Airflow's scheduler, one step at a time, over the metadata database of a test."""

# ruff: noqa: PLC0415 - the scheduler's side is imported after the home is set

from __future__ import annotations

import json
import time
from typing import Any

from airflow.sdk import DAG, Asset

from tests.airflow.task_runs import serialized
from tests.internals.triggers import message_outcome, outcome_key
from tests.unit.engine.listening import until

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
        self.other_id = self.session.scalar(select(AssetModel.id).where(AssetModel.name == "other"))
        self.asset_id = self.session.scalar(select(AssetModel.id).where(AssetModel.name == ORDERS.name))
        self._runner = SchedulerJobRunner(Job())

    def store(self, payload: dict[str, Any], *, of: int | None = None, **more: Any) -> None:
        """Store an event as the triggerer does."""
        from airflow.assets.manager import AssetManager
        from airflow.models.asset import AssetModel

        asset = self.session.get(AssetModel, of or self.asset_id)
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
        """Return the outcome of a held message so far."""
        return (self.kept(outcome_key(f"t{number}")) or {}).get("acknowledged")

    def outcome(self, number: int) -> bool | None:
        """Return whether a held message is acknowledged or failed; `None` if it still waits."""
        found = message_outcome(self.kept(outcome_key(f"t{number}")), None)
        return found is True if found is not None else None

    def kept(self, key: str) -> Any:
        """Return a value of the asset's state store."""
        from airflow.state import AssetScope, get_state_backend

        scope = AssetScope(asset_id=self.asset_id)
        found = get_state_backend().get(scope, key, session=self.session)
        return None if found is None else json.loads(found)

    def forget(self, number: int) -> None:
        """Delete the record of a held message, as the triggerer does when the message is settled."""
        from airflow.state import AssetScope, get_state_backend

        scope = AssetScope(asset_id=self.asset_id)
        get_state_backend().delete(scope, f"jms-hold.{number}", session=self.session)
        self.session.commit()

    def pause(self, dag_id: str) -> None:
        from airflow.models.dag import DagModel
        from sqlalchemy import update

        self.session.execute(update(DagModel).where(DagModel.dag_id == dag_id).values(is_paused=True))
        self.session.commit()

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
