from __future__ import annotations

from airflow_provider_jmsjca.transports.backlog import Backlog
from airflow_provider_jmsjca.transports.base import (
    ConnectionState,
    Consumer,
    OnReceived,
    Received,
    UnitOfWork,
)
from airflow_provider_jmsjca.transports.members import limbo_name
from airflow_provider_jmsjca.transports.memory import connection
from airflow_provider_jmsjca.transports.memory.administration import MemoryAdministration
from airflow_provider_jmsjca.transports.memory.connection import MemoryConnection
from airflow_provider_jmsjca.transports.stomp.connection import StompConnection
from airflow_provider_jmsjca.transports.stomp.dialects.activemq import ActiveMqDialect
from airflow_provider_jmsjca.transports.stomp.dialects.artemis import ArtemisDialect
from airflow_provider_jmsjca.transports.stomp.dialects.rabbitmq import RabbitMqDialect
from airflow_provider_jmsjca.transports.stomp.management import ManagementControl, queue_resource

__all__ = [
    "ActiveMqDialect",
    "ArtemisDialect",
    "Backlog",
    "ConnectionState",
    "Consumer",
    "ManagementControl",
    "MemoryAdministration",
    "MemoryConnection",
    "OnReceived",
    "RabbitMqDialect",
    "Received",
    "StompConnection",
    "UnitOfWork",
    "connection",
    "limbo_name",
    "queue_resource",
]
