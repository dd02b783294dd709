"""STOMP 1.2 for ActiveMQ Classic, Apache Artemis and RabbitMQ, on stomp.py.

From the bottom up: `wire` (bytes and frames), `dialects` (differences between brokers), `link` (a connection
and its pending requests). The modules in this folder implement `transports.base`: opening, consuming,
sending, browsing, and units of work.
"""

from __future__ import annotations

from airflow_provider_jmsjca.transports.stomp.opening import TRANSPORT

__all__ = ["TRANSPORT"]
