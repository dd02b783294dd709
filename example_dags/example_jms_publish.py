"""Sends two messages to a queue."""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import DAG

from airflow_provider_jmsjca import JmsPublishOperator

with DAG(
    "example_jms_publish", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC), tags=["jms"]
) as dag:
    JmsPublishOperator(
        task_id="publish",
        jms_conn_id="jms_default",
        destination="queue://orders",
        messages=['{"id": 1, "day": "{{ ds }}"}', '{"id": 2, "day": "{{ ds }}"}'],
        properties={"region": "eu"},
    )
