"""STOMP 1.2 for ActiveMQ Classic, Apache Artemis and RabbitMQ, on stomp.py."""

from __future__ import annotations

from airflow_provider_jmsjca.transports.stomp.opening import TRANSPORT

__all__ = ["TRANSPORT"]
