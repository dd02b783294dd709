from __future__ import annotations

from airflow_provider_jmsjca.engine.activations.every_member import every_member
from airflow_provider_jmsjca.engine.activations.listener import Listener, RunMonitor
from airflow_provider_jmsjca.engine.activations.run import ListenerRun, one_connection
from airflow_provider_jmsjca.engine.activations.shared_subscription import load_balancing, shared_subscription
from airflow_provider_jmsjca.engine.connecting import async_connection
from airflow_provider_jmsjca.engine.connecting.async_connection import AsyncConnection
from airflow_provider_jmsjca.engine.connecting.connector import RetryPolicy, open_connection
from airflow_provider_jmsjca.engine.connecting.pool import ConnectionPool
from airflow_provider_jmsjca.engine.delivering.attempt_log import AttemptLog
from airflow_provider_jmsjca.engine.delivering.delayed_messages import DelayedMessages
from airflow_provider_jmsjca.engine.delivering.loop.stream import DeliveryStream
from airflow_provider_jmsjca.engine.delivering.settings import (
    ListenerContext,
    ListenerSettings,
    listener_settings,
)
from airflow_provider_jmsjca.engine.delivering.threaded.workers import Handler
from airflow_provider_jmsjca.engine.limbo import LEASE, LimboSender
from airflow_provider_jmsjca.engine.send_markers import SEND_MARKERS
from airflow_provider_jmsjca.engine.watching import backlog
from airflow_provider_jmsjca.engine.watching.peek import Ready, browse_or_receive, peek
from airflow_provider_jmsjca.engine.watching.queue_watch import QueueWatch

__all__ = [
    "LEASE",
    "SEND_MARKERS",
    "AsyncConnection",
    "AttemptLog",
    "ConnectionPool",
    "DelayedMessages",
    "DeliveryStream",
    "Handler",
    "LimboSender",
    "Listener",
    "ListenerContext",
    "ListenerRun",
    "ListenerSettings",
    "QueueWatch",
    "Ready",
    "RetryPolicy",
    "RunMonitor",
    "async_connection",
    "backlog",
    "browse_or_receive",
    "every_member",
    "listener_settings",
    "load_balancing",
    "one_connection",
    "open_connection",
    "peek",
    "shared_subscription",
]
