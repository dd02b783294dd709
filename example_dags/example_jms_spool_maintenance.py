"""Removes old batches from the spool each night, and names those that somebody has to look after."""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import DAG

from airflow_provider_jmsjca import JmsSpoolMaintenanceOperator

with DAG(
    "example_jms_spool_maintenance",
    schedule="@daily",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    tags=["jms"],
) as dag:
    JmsSpoolMaintenanceOperator(task_id="keep_in_order", older_than=7 * 24 * 3600)
