"""Runs one task after the other in `dag.test()`; OpenLineage is set up by the environment.

Arguments: queue, folder. The states of the runs go to its file `outcomes`.
Airflow gives each task a process of its own, and so a collector of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from airflow.sdk import BaseOperator, lineage

from airflow_provider_jmsjca import JmsCollectOperator, JmsPublishOperator, JmsToSparkSubmitOperator
from tests.airflow.task_runs import run_task

queue, folder = sys.argv[1], Path(sys.argv[2])


def run(dag_id: str, make: Callable[[], BaseOperator]) -> None:
    lineage.get_hook_lineage_collector.cache_clear()
    outcome = run_task(make, dag_id)
    with (folder / "outcomes").open("a") as file:  # what is printed, log records may tear apart
        file.write(f"{dag_id} {outcome.state}\n")


run(
    "publish",
    lambda: JmsPublishOperator(
        task_id="task", jms_conn_id="jms_real", destination=queue, messages=[{"id": 1}, {"id": 2}, {"no": 3}]
    ),
)
run(
    "collect",
    lambda: JmsCollectOperator(
        task_id="task", jms_conn_id="jms_real", destination=queue, max_messages=1,
        spool_path=str(folder / "spool"),
    ),
)  # fmt: skip
run(
    "spark",
    lambda: JmsToSparkSubmitOperator(
        task_id="task", jms_conn_id="jms_real", destination=queue, max_messages=2,
        spool_path=str(folder / "spool"), conf={"spark.ui.enabled": "false"},
        application_args=["--table", str(folder / "a table"), "--schema", "id LONG NOT NULL"],
    ),
)  # fmt: skip
