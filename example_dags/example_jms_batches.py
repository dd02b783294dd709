"""Runs for every batch of up to 500 messages, or for what came within 30 seconds."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, Asset, AssetWatcher, task

from airflow_provider_jmsjca import JmsActivationTrigger, messages_from_event

payments = Asset(
    "payments",
    watchers=[
        AssetWatcher(
            name="payments",
            trigger=JmsActivationTrigger("jms_default", "queue://payments", batch_size=500, batch_timeout=30),
        )
    ],
)

with DAG("example_jms_batches", schedule=[payments], catchup=False, tags=["jms"]) as dag:

    @task
    def count(triggering_asset_events: Any = None) -> dict[str, int]:
        """Count messages and characters, whether the events hold their bodies or refer to them."""
        messages = [
            message for event in triggering_asset_events[payments] for message in messages_from_event(event)
        ]
        return {"messages": len(messages), "characters": sum(len(str(each.body)) for each in messages)}

    count()
