"""Filling a queue before it is consumed; not measured."""

from __future__ import annotations

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import ConnectionSettings, Outgoing
from tests.bench.rates import BODY


def fill(settings: ConnectionSettings, queue: str, messages: int) -> None:
    """Send that many persistent messages; the broker has confirmed them on return."""
    outgoing = Outgoing(destination=Destination.queue(queue), message=JmsMessage.text(BODY))
    connection = connect(settings)
    try:
        connection.send(outgoing for _ in range(messages))
    finally:
        connection.close()
