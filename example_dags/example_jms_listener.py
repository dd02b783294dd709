"""Handles each order in a transaction, until none comes for ten seconds; what keeps failing is moved."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_jmsjca import JmsMessage

with DAG("example_jms_listener", schedule=None, catchup=False, tags=["jms"]) as dag:

    @task.jms_listener(
        jms_conn_id="jms_default",
        destination="queue://orders",
        redelivery_handling="3:move(queue:$.dead)",
        idle_for=10,
        defer_after=None,
        retries=5,
    )
    def book(delivery: Any) -> None:
        """Send an answer, which is committed together with the order."""
        if not delivery.body:
            raise ValueError("an order needs a body")
        delivery.send("queue://booked", JmsMessage.text(f"booked {delivery.body}"))

    book()
