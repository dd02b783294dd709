"""Tells a queue when a task has failed, and another when it is done."""

from __future__ import annotations

from airflow.sdk import DAG, task

from airflow_provider_jmsjca import JmsNotifier

failed = JmsNotifier(
    jms_conn_id="jms_default",
    destination="queue://alerts",
    messages="{{ ti.task_id }} failed: {{ exception }}",
    properties={"dag": "{{ dag.dag_id }}"},
)
done = JmsNotifier(jms_conn_id="jms_default", destination="queue://done", messages="{{ ti.task_id }} is done")

with DAG("example_jms_notifier", schedule=None, catchup=False, tags=["jms"]) as dag:

    @task(on_failure_callback=failed, on_success_callback=done)
    def load() -> int:
        """Do something worth telling."""
        return 3

    load()
