from __future__ import annotations

import pytest

from airflow_provider_jmsjca.transports.stomp.dialects import recognise
from airflow_provider_jmsjca.transports.stomp.dialects.activemq import ActiveMqDialect
from airflow_provider_jmsjca.transports.stomp.dialects.artemis import ArtemisDialect
from airflow_provider_jmsjca.transports.stomp.dialects.dialect import Dialect
from airflow_provider_jmsjca.transports.stomp.dialects.generic import GenericDialect
from airflow_provider_jmsjca.transports.stomp.dialects.rabbitmq import RabbitMqDialect


@pytest.mark.parametrize(
    ("server", "dialect", "product", "version"),
    [
        ("ActiveMQ/6.3.1", ActiveMqDialect, "activemq", "6.3.1"),
        (
            "ActiveMQ-Artemis/2.56.0 ActiveMQ Artemis Messaging Engine",
            ArtemisDialect,
            "artemis",
            "2.56.0",
        ),
        ("RabbitMQ/3.10.8", RabbitMqDialect, "rabbitmq", "3.10.8"),
        ("apache-apollo/1.7.1", GenericDialect, "apache-apollo", "1.7.1"),
        ("SomeServer", GenericDialect, "SomeServer", ""),
        ("", GenericDialect, "unknown", ""),
    ],
)
def test_by_server_header(server: str, dialect: type[Dialect], product: str, version: str) -> None:
    found, name, number = recognise(server)
    assert type(found) is dialect
    assert (name, number) == (product, version)
