"""Asks a service for a price over two queues, and goes on with its answer."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_jmsjca import JmsRequestOperator, message_from_event

with DAG("example_jms_request", schedule=None, catchup=False, tags=["jms"]) as dag:
    # The answer is on disk before it is acknowledged: a retry returns it, and asks again only without one.
    ask = JmsRequestOperator(
        task_id="ask",
        jms_conn_id="jms_default",
        destination="queue://prices.ask",
        reply_to="queue://prices.answers",
        message={"article": 4711},
        response_timeout=600,
        deferrable=True,
        poke_interval=5,
        retries=5,
    )

    @task
    def price(answer: dict[str, Any]) -> str:
        """Return the price."""
        return str(message_from_event(answer).body)

    price(ask.output)
