"""Messages on a queue start a DAG, a batch of them goes into a Spark table, a report goes back to JMS.

Needs the connections `jms_default` and `spark_default`. `make demo` runs it on 50,000 real flights.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, Asset, AssetWatcher

from airflow_provider_jmsjca import JmsActivationTrigger, JmsPublishOperator, JmsToSparkSubmitOperator

waiting = Asset(
    "flights-waiting",
    watchers=[
        AssetWatcher(
            name="flights", trigger=JmsActivationTrigger(destination="queue://flights", event="ready")
        )
    ],
)

# A retry goes on with the batch of the attempt before.
retrying = {"retries": 5, "retry_delay": timedelta(seconds=5)}

with DAG("flights_to_spark", schedule=[waiting], catchup=False, max_active_runs=1, default_args=retrying):
    store = JmsToSparkSubmitOperator(
        task_id="store",
        destination="queue://flights",
        max_messages=int(os.environ.get("JMS_EXAMPLE_BATCH", "25000")),
        dead_letter_destination="queue://flights.dlq",
        application=str(Path(__file__).parent / "jobs" / "flights_table.py"),
        application_args=[os.environ.get("JMS_EXAMPLE_TABLE", "/tmp/warehouse/flights")],  # noqa: S108
        spool_path=os.environ.get("JMS_EXAMPLE_SPOOL"),
    )
    report = JmsPublishOperator(
        task_id="report",
        destination="queue://flights.reports",
        messages="{{ ti.xcom_pull(task_ids='store') | tojson }}",
    )
    store >> report
