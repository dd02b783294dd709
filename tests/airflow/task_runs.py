"""Task runs as Airflow makes them, in this process: `dag.test()`."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from airflow import settings
from airflow.assets.manager import AssetManager
from airflow.models import dagrun
from airflow.models.asset import AssetEvent, AssetModel
from airflow.models.asset_state_store import AssetStateStoreModel
from airflow.models.dagbundle import DagBundleModel
from airflow.models.serialized_dag import SerializedDagModel
from airflow.sdk import DAG, Asset, BaseOperator
from airflow.serialization.definitions.dag import SerializedDAG
from airflow.serialization.serialized_objects import LazyDeserializedDAG
from airflow.utils.session import create_session
from airflow.utils.types import DagRunType
from sqlalchemy import select

from tests.internals.triggers import outcome_key


class Outcome:
    """What became of a run of one task."""

    def __init__(self, run: Any, task_id: str) -> None:
        instance = run.get_task_instance(task_id) or run.get_task_instance(task_id, map_index=0)
        self.run = run
        self.state = instance.state
        self.value = instance.xcom_pull(task_ids=task_id)


def serialized(dag: DAG) -> None:
    """Have a DAG in Airflow's database, as its DAG processor puts it there."""
    bundle = "dags-folder"
    with create_session() as session:
        if session.get(DagBundleModel, bundle) is None:
            session.add(DagBundleModel(name=bundle))
            session.flush()
        lazy = LazyDeserializedDAG.from_dag(dag)
        SerializedDAG.bulk_write_to_db(bundle, None, [lazy], session=session)
        SerializedDagModel.write_dag(lazy, bundle_name=bundle, session=session)


def execute(dag: DAG, task_id: str) -> Outcome:
    """Run a DAG once. Airflow wants to have it in its database first."""
    serialized(dag)
    day = datetime(2026, 1, 2, tzinfo=UTC)
    return Outcome(dag.test(run_after=day, logical_date=day), task_id)


def execute_on_event(dag: DAG, task_id: str, asset: Asset, payload: dict[str, Any]) -> Outcome:
    """Run a DAG once, for an event of a trigger that Airflow has stored."""
    serialized(dag)
    session = settings.Session()  # that of the thread, in which the triggerer stores events
    model = session.scalar(select(AssetModel).where(AssetModel.name == asset.name))
    assert model is not None
    extra = {"from_trigger": True, "payload": payload}
    event = AssetManager.register_asset_change(asset=model, extra=extra, session=session)
    assert event is not None
    event_id = event.id
    session.commit()
    session.close()
    make = dagrun.get_or_create_dagrun

    def made(**arguments: Any) -> Any:
        run = make(**arguments)
        run.run_type = DagRunType.ASSET_TRIGGERED
        run.consumed_asset_events.append(arguments["session"].get(AssetEvent, event_id))
        arguments["session"].commit()
        return run

    day = datetime(2026, 1, 2, tzinfo=UTC)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dagrun, "get_or_create_dagrun", made)
        return Outcome(dag.test(run_after=day, logical_date=day), task_id)


def word_of(payload: dict[str, Any]) -> Any:
    """Return what the runs of an event have said of its messages, which wait for that."""
    with create_session() as session:
        row = session.scalar(
            select(AssetStateStoreModel).where(
                AssetStateStoreModel.key == outcome_key(payload["hold"]["token"])
            )
        )
        return None if row is None else json.loads(row.value)


def run_task(make: Callable[[], BaseOperator], dag_id: str | None = None) -> Outcome:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    with DAG(dag_id or f"dag_{uuid.uuid4().hex[:8]}", schedule=None, start_date=start) as dag:
        task = make()
    return execute(dag, task.task_id)
