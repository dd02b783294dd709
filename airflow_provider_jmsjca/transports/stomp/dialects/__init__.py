"""One dialect per broker, chosen from the `server` header of CONNECTED."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from airflow_provider_jmsjca.transports.stomp.dialects.activemq import ActiveMqDialect
from airflow_provider_jmsjca.transports.stomp.dialects.artemis import ArtemisDialect
from airflow_provider_jmsjca.transports.stomp.dialects.dialect import Dialect
from airflow_provider_jmsjca.transports.stomp.dialects.generic import GenericDialect
from airflow_provider_jmsjca.transports.stomp.dialects.rabbitmq import RabbitMqDialect

GENERIC: Final = GenericDialect()
BY_SERVER: Final[Mapping[str, Dialect]] = MappingProxyType(
    {
        "ActiveMQ": ActiveMqDialect(),
        "ActiveMQ-Artemis": ArtemisDialect(),
        "RabbitMQ": RabbitMqDialect(),
    }
)
_SERVER: Final = re.compile(r"(?P<name>[^/\s]*)(?:/(?P<version>\S*))?")


def recognise(server: str) -> tuple[Dialect, str, str]:
    """Return the dialect, the product's name and its version for a `server` header.

    An unknown product gets the generic dialect, under the name it gives itself.
    """
    match = _SERVER.match(server)
    name, version = (match["name"], match["version"] or "") if match else ("", "")
    dialect = BY_SERVER.get(name, GENERIC)
    return dialect, name if dialect is GENERIC and name else dialect.product, version
