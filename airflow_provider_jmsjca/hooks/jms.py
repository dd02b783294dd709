"""The hook: from an Airflow connection to a broker."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from airflow.sdk import Connection
from airflow.sdk.bases.hook import BaseHook
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.layers import Layer, call_layer, connector_layer
from airflow_provider_jmsjca.core.options import option_by_field
from airflow_provider_jmsjca.core.precedence import Resolved, resolve
from airflow_provider_jmsjca.engine.connection import JmsConnection
from airflow_provider_jmsjca.errors import ConfigurationError, JmsError
from airflow_provider_jmsjca.hooks.connection_cache import jms_connection
from airflow_provider_jmsjca.hooks.destinations import finder, looked_up
from airflow_provider_jmsjca.hooks.settings import (
    connection_layer,
    lookup_name,
    lookup_of,
    own_entries,
    resolve_connection,
    settings_for,
)
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
        found = self._find()
        return settings_for(self.jms_conn_id, self._resolve(found))

    def options(self) -> Resolved:
        """Return every option in force, with its origin.

        Raises:
            ConfigurationError: The connection can't be used; every fault is named.
        """
        return self._resolve(self._find())

    async def aoptions(self) -> Resolved:
        """Return every option in force, with its origin; for an event loop.

        Raises:
            ConfigurationError: The connection can't be used; every fault is named.
        """
        return self._resolve(await self._afind())

    async def asettings(self) -> ConnectionSettings:
        """Return what the Airflow connection says; for an event loop.

        Raises:
            ConfigurationError: The connection can't be used; every fault is named.
        """
        return settings_for(self.jms_conn_id, await self.aoptions())

    def layers(self) -> tuple[Layer, dict[str, Layer]]:
        """Return what the Airflow connection says, unresolved, and those its URL refers to, by their ids.

        Raises:
            ConfigurationError: The connection is not defined, or its extra field is no JSON object.
        """
        found = self._find()
        return connection_layer(found[0]), {each.conn_id: connection_layer(each) for each in found}

    def activation(self, spec: ActivationSpec) -> tuple[ActivationSpec, ConnectionSettings]:
        """Return the spec after every level was heard, and the settings to connect with for it.

        Administered objects are looked up; not for the triggerer's event loop.

        Raises:
            ConfigurationError: Every fault of every level.

        Source: J46-J48, J77, J113.
        """
        resolved = resolve_levels(self, spec.layer())
        return looked_up(ActivationSpec.from_resolved(resolved)), settings_for(self.jms_conn_id, resolved)

    def get_conn(self, username: str | None = None, password: str | None = None) -> JmsConnection:
        """Connect, or share a connection that this process has already.

        Args:
            username: User to log in as instead of the connection's; or a connection URL, which takes the
                place of its address and may hold `username` and `password` in its query, or is
                `lookup://` and another Airflow connection.
            password: Password of that user.

        Returns:
            A connection for sending, receiving and transactions; close it, or use it as a context manager.
            Closed, it is kept for the next user until its idle timeout (`hooks.connection_cache`).

        Raises:
            ConfigurationError: The Airflow connection can't be used.
            TransientBrokerError: No host answered in time.
            AuthenticationError: The broker refuses the credentials.

        Source: J14, J41, J43, J75, J76, J78-J80, J89, J98-J100, J102.
        """
        found = self._find()
        other = [] if (name := lookup_name(username)) is None else JmsHook(name)._find()  # noqa: SLF001  # the same class
        call = call_layer(username, password) if username or password else None
        options = self._resolve([*found, *other], call)
        # The second use of a name asks nobody (J89).
        find = finder()
        return jms_connection(settings_for(self.jms_conn_id, options), options, find)

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

    def _get(self, conn_id: str) -> Connection:
        with _connection_found(conn_id):
            return self.get_connection(conn_id)

    async def _aget(self, conn_id: str) -> Connection:
        with _connection_found(conn_id):
            return await self.aget_connection(conn_id)

    @staticmethod
    def _next_lookup(found: list[Connection]) -> str | None:
        """Return the connection the last one refers to; a circle is left for the resolution to report."""
        name = lookup_of(found[-1])
        return None if name in {connection.conn_id for connection in found} else name

    def _find(self) -> list[Connection]:
        found = [self._get(self.jms_conn_id)]
        while (name := self._next_lookup(found)) is not None:
            found.append(self._get(name))
        return found

    async def _afind(self) -> list[Connection]:
        found = [await self._aget(self.jms_conn_id)]
        while (name := self._next_lookup(found)) is not None:
            found.append(await self._aget(name))
        return found

    @staticmethod
    def _resolve(found: list[Connection], call: Layer | None = None) -> Resolved:
        lookups = {connection.conn_id: connection for connection in found}
        return resolve_connection(
            found[0], lookups=lookups, section=_section(), environment=os.environ, call=call
        )


@contextlib.contextmanager
def _connection_found(conn_id: str) -> Iterator[None]:
    try:
        yield
    except AirflowNotFoundException as error:
        raise ConfigurationError(f"connection {conn_id!r} is not defined in Airflow") from error


def resolve_levels(hook: JmsHook | None, activation: Layer | None) -> Resolved:
    """Return what holds for an activation over a connection; either may be left out.

    An activation whose URL is `lookup://name` takes the Airflow connection of that name.

    Raises:
        ConfigurationError: Every fault of every level.

    Source: J31, J68-J72, J113.
    """
    layers = [connector_layer(own_entries(_section()), os.environ)]
    connections: dict[str, Layer] = {}
    if hook is not None:
        layer, connections = hook.layers()
        layers.append(layer)
    if activation is not None:
        layers.append(activation)
        for spelling, value in activation.fields.items():
            option = option_by_field(spelling)
            if option is not None and option.name == "connection_url" and (name := lookup_name(str(value))):
                connections = connections | JmsHook(name).layers()[1]
    return resolve(layers, connections)


def _section() -> dict[str, str]:
    return {name: str(value) for name, value in (conf.getsection("jmsjca") or {}).items()}
