"""STOMP 1.2 for ActiveMQ Classic, Apache Artemis and RabbitMQ, on stomp.py.

From below: `wire` (bytes and frames), `dialects` (what differs from broker to broker), `link` (one connection
and who waits for what on it). The modules here are the port on top: opening, consuming, sending, browsing,
and units of work.
"""

from __future__ import annotations

from airflow_provider_jmsjca.transports.stomp.opening import TRANSPORT

__all__ = ["TRANSPORT"]
