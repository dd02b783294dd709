"""Takes one message from each of several queues, and answers each on a queue of its own."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_jmsjca import JmsPublishOperator, JmsSensor, messages_from_event

REGIONS = ["eu", "us"]

with DAG("example_jms_mapped", schedule=None, catchup=False, tags=["jms"]) as dag:
    # Each mapped task instance claims messages of its own, and returns them again when it is retried.
    orders = JmsSensor.partial(
        task_id="orders", jms_conn_id="jms_default", peek=False, poke_interval=5, timeout=3600
    ).expand(destination=[f"queue://orders.{region}" for region in REGIONS])

    @task
    def answer(value: dict[str, Any]) -> dict[str, Any]:
        """Return what the publishing task of this region sends, and where."""
        region = value["destination"].rpartition(".")[2]
        bodies = [f"booked {message.body}" for message in messages_from_event(value)]
        return {"destination": f"queue://booked.{region}", "messages": bodies}

    JmsPublishOperator.partial(task_id="answer_each", jms_conn_id="jms_default").expand_kwargs(
        answer.expand(value=orders.output)
    )
