"""Waits for orders, books them, and answers; then waits for the one message that says the day is over."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_jmsjca import JmsMessage, JmsPublishOperator, JmsSensor, messages_from_event

with DAG("example_jms_sensor", schedule=None, catchup=False, tags=["jms"]) as dag:
    # The messages are on disk before they are acknowledged: a retry returns the same ones.
    orders = JmsSensor(
        task_id="orders",
        jms_conn_id="jms_default",
        destination="queue://orders",
        peek=False,
        max_messages=10,
        deferrable=True,
        poke_interval=5,
        timeout=3600,
        fail_on="status = 'CANCELLED'",
        retries=5,
    )

    @task
    def book(value: dict[str, Any]) -> list[str]:
        """Return an answer to each order."""
        return [f"booked {message.body}" for message in messages_from_event(value)]

    answers = JmsPublishOperator(
        task_id="answer",
        jms_conn_id="jms_default",
        destination="queue://booked",
        messages=book(orders.output),
    )

    @task.jms_sensor(jms_conn_id="jms_default", destination="queue://booked", poke_interval=5, timeout=3600)
    def last_answer(message: JmsMessage, wanted: str) -> bool:
        """Tell whether this is the answer to wait for; all messages stay on the queue."""
        return str(message.body).endswith(wanted)

    answers >> last_answer("end of day")
