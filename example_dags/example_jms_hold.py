"""Books shipments; a message is acknowledged when it is booked, and comes again if that fails."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, Asset, AssetWatcher, task

from airflow_provider_jmsjca import (
    JmsAcknowledgeOperator,
    JmsActivationTrigger,
    message_from_event,
)

shipments = Asset(
    "shipments",
    watchers=[
        AssetWatcher(
            name="shipments",
            trigger=JmsActivationTrigger(
                "jms_default",
                "queue://shipments",
                hold_until_ack=True,
                redelivery_handling="1:60000; 5:move(queue:$.dead)",
            ),
        )
    ],
)

with DAG("example_jms_hold", schedule=[shipments], catchup=False, tags=["jms"]) as dag:

    @task(retries=2)
    def book(triggering_asset_events: Any = None) -> int:
        """Book what each message says, and return how many there were."""
        messages = [message_from_event(event) for event in triggering_asset_events[shipments]]
        return sum(len(str(message.body)) > 0 for message in messages)

    @task
    def tell() -> None:
        """Tell somebody: if this fails the shipments are booked all the same."""

    # Without this task the messages would be acknowledged when the whole run has succeeded.
    booked = JmsAcknowledgeOperator(task_id="booked", asset=shipments)
    book() >> booked >> tell()
