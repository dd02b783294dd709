"""The hook: from an Airflow connection to a broker."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from airflow.sdk.bases.hook import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_provider_jmsjca.engine.connection import JmsConnection
from airflow_provider_jmsjca.errors import ConfigurationError, JmsError
from airflow_provider_jmsjca.hooks.settings import connection_settings
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import ConnectionSettings

_PRODUCTS = {
    "activemq": "ActiveMQ",
    "artemis": "Artemis",
    "rabbitmq": "RabbitMQ",
    "memory": "In-memory broker",
}


class JmsHook(BaseHook):
    """Connects to the broker an Airflow connection of type `jms` names.

    Args:
        jms_conn_id: The Airflow connection.
    """

    conn_name_attr = "jms_conn_id"
    default_conn_name = "jms_default"
    conn_type = "jms"
    hook_name = "JMS"

    def __init__(self, jms_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.jms_conn_id = jms_conn_id

    def settings(self) -> ConnectionSettings:
        """Return what the Airflow connection says.

        Not for the triggerer's event loop, which it would block: see `asettings`.

        Raises:
            ConfigurationError: The connection can't be used; every fault is named.
        """
        with self._connection_found():
            connection = self.get_connection(self.jms_conn_id)
        return connection_settings(connection)

    async def asettings(self) -> ConnectionSettings:
        """Return what the Airflow connection says; for an event loop.

        Raises:
            ConfigurationError: The connection can't be used; every fault is named.
        """
        with self._connection_found():
            connection = await self.aget_connection(self.jms_conn_id)
        return connection_settings(connection)

    def get_conn(self) -> JmsConnection:
        """Connect.

        Returns:
            A connection for sending, receiving and transactions; close it, or use it as a context manager.

        Raises:
            ConfigurationError: The Airflow connection can't be used.
            TransientBrokerError: No host answered in time.
            AuthenticationError: The broker refuses the credentials.
        """
        return JmsConnection(connect(self.settings()))

    def test_connection(self) -> tuple[bool, str]:
        """Connect, and say which broker answered or in one line why none did."""
        try:
            connection = connect(self.settings())
        except JmsError as error:
            return False, " ".join(str(error).split())
        try:
            broker = connection.broker
        finally:
            connection.close()
        product = _PRODUCTS.get(broker.product, broker.product)
        return True, f"{product} {broker.version} at {broker.address}".replace("  ", " ")

    @contextlib.contextmanager
    def _connection_found(self) -> Iterator[None]:
        try:
            yield
        except AirflowNotFoundException as error:
            raise ConfigurationError(f"connection {self.jms_conn_id!r} is not defined in Airflow") from error
