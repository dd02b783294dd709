"""Runs for each payment, by the names that Airflow gives: a message queue, and an asset with a URI.

It needs the provider `apache-airflow-providers-common-messaging`.
"""

from __future__ import annotations

from typing import Any

from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.sdk import DAG, Asset, AssetWatcher, task

from airflow_provider_jmsjca import message_from_event

payments = Asset(
    "jms://broker.example.com/queue/payments",
    watchers=[
        AssetWatcher(
            name="payments",
            # Large messages go by reference through the spool.
            trigger=MessageQueueTrigger(
                scheme="jms", jms_conn_id="jms_default", destination="queue://payments", max_body_bytes=65_536
            ),
        )
    ],
)

with DAG("example_jms_names", schedule=[payments], catchup=False, tags=["jms"]) as dag:

    @task
    def lengths(triggering_asset_events: Any = None) -> list[int]:
        """Return how long the message of each event is, wherever its body is."""
        events = triggering_asset_events[payments]
        return [len(str(message_from_event(event).body)) for event in events]

    lengths()
