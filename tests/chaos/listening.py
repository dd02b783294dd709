"""A process that listens until its queue is empty: even numbers are sent on, odd ones are dead letters.

The test kills it, or its broker.
"""

from __future__ import annotations

import functools
import json
import logging
import sys
from dataclasses import replace
from datetime import timedelta
from typing import Any

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.backoff import Backoff
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.engine.listener import Activation
from airflow_provider_jmsjca.engine.listener_settings import listener_settings
from airflow_provider_jmsjca.errors import PoisonMessageError
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import ConnectionSettings


def main() -> None:
    logging.basicConfig(level=logging.WARNING)
    asked = json.loads(sys.stdin.readline())
    settings = ConnectionSettings(
        scheme="stomp",
        hosts=((asked["host"], asked["port"]),),
        username=asked["username"],
        password=asked["password"],
        connect_timeout=timedelta(seconds=2),
        heart_beat=timedelta(seconds=1),
    )
    queue = asked["queue"]
    spec = ActivationSpec(
        destination=f"queue://{queue}",
        concurrency_mode=asked["mode"],
        endpoint_pool_max_size=3,
        prefetch=asked["prefetch"],
        redelivery_handling="20:move(queue:$.dead)",
        dead_letter_destination=f"queue://{queue}.dead",
    )
    listener = listener_settings(spec)
    outage = replace(listener.delivery.outage, backoff=Backoff(steps=(timedelta(seconds=0.2),)))
    listener = replace(listener, delivery=replace(listener.delivery, outage=outage))

    def handle(delivery: Any) -> None:
        sys.stdout.write(".")
        sys.stdout.flush()
        if int(delivery.body) % 2:
            raise PoisonMessageError("odd")
        delivery.send(f"queue://{queue}.out", JmsMessage.text(delivery.body))

    counts = Activation(listener, functools.partial(connect, settings), handle).run(
        idle_for=timedelta(seconds=asked["idle_for"])
    )
    sys.stdout.write(json.dumps(counts.as_dict()) + "\n")


if __name__ == "__main__":
    main()
