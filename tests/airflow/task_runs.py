"""Task runs as Airflow makes them, in this process: `dag.test()`."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from airflow.models.dagbundle import DagBundleModel
from airflow.models.serialized_dag import SerializedDagModel
from airflow.sdk import DAG, BaseOperator
from airflow.serialization.definitions.dag import SerializedDAG
from airflow.serialization.serialized_objects import LazyDeserializedDAG
from airflow.utils.session import create_session


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


def run_task(make: Callable[[], BaseOperator], dag_id: str | None = None) -> Outcome:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    with DAG(dag_id or f"dag_{uuid.uuid4().hex[:8]}", schedule=None, start_date=start) as dag:
        task = make()
    return execute(dag, task.task_id)
