"""Runs when messages are on a queue, and collects them until there are none."""

from __future__ import annotations

from airflow.sdk import DAG, Asset, AssetWatcher

from airflow_provider_jmsjca import JmsActivationTrigger, JmsCollectOperator

orders = Asset(
    "orders_waiting",
    watchers=[
        AssetWatcher(
            name="orders",
            trigger=JmsActivationTrigger("jms_default", "queue://orders", event="ready"),
        )
    ],
)

# One run at a time: Airflow folds the events that come meanwhile into one further run.
with DAG("example_jms_event", schedule=[orders], catchup=False, max_active_runs=1, tags=["jms"]) as dag:
    JmsCollectOperator(task_id="collect", jms_conn_id="jms_default", destination="queue://orders", retries=5)
