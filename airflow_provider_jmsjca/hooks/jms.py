"""The hook: from an Airflow connection to a broker."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import Connection
from airflow.sdk.bases.hook import BaseHook
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_provider_jmsjca.core.configuration.layers import Layer, call_layer, connector_layer
from airflow_provider_jmsjca.core.configuration.precedence import Resolved, resolve
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.options import option_by_field
from airflow_provider_jmsjca.errors import ConfigurationError, JmsError, TransientBrokerError
from airflow_provider_jmsjca.hooks.destinations import cached_find_destination, with_lookups
from airflow_provider_jmsjca.hooks.settings import (
    connection_layer,
    jms_entries,
    lookup_name,
    lookup_of,
    resolve_connection,
    settings_for,
    with_client_id_of,
)
from airflow_provider_jmsjca.hooks.stored_connections import airflow_connection, undefined_text
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import ConnectionSettings
from airflow_provider_jmsjca.transports.members import settings_for_member, split_limbo_name

if TYPE_CHECKING:
    from airflow_provider_jmsjca.core.activation import ActivationSpec
    from airflow_provider_jmsjca.engine.session.connection import JmsConnection

_PRODUCTS = {
    "activemq": "ActiveMQ",
    "artemis": "Artemis",
    "rabbitmq": "RabbitMQ",
    "memory": "In-memory broker",
}

_ANSWER_HOLDS_SECONDS = 1.0


class _UndefinedError(ConfigurationError):
    """The Airflow connection is not defined."""


@dataclass(frozen=True, slots=True)
class _ConnectionLookup:
    """An Airflow connection, the connections its URLs refer to, and the merged result."""

    found: list[Connection]
    resolved: Resolved


_PARTS: Final = ("conn_id", "conn_type", "host", "port", "schema", "login", "password", "extra")
"""Fields of an Airflow connection that decide how to connect."""
_asked: weakref.WeakKeyDictionary[
    asyncio.AbstractEventLoop, dict[str, asyncio.Task[_ConnectionLookup | JmsError]]
] = weakref.WeakKeyDictionary()


class JmsHook(BaseHook):
    """Connects to the broker that an Airflow connection of type `jms` names.

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

    @classmethod
    def get_connection(cls, conn_id: str) -> Connection:
        """Return an Airflow connection.

        Args:
            conn_id: Id of the connection.

        Raises:
            AirflowNotFoundException: The connection is not defined in this process.
        """
        return airflow_connection(conn_id)

    def settings(self) -> ConnectionSettings:
        """Return the connection settings of the Airflow connection.

        Don't call it in the triggerer's event loop, which it would block; see `asettings`.

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

        Concurrent calls for the same connection, and calls within the next second, share one query of
        Airflow. So a thousand triggers cause one query.

        Raises:
            ConfigurationError: The connection can't be used; every fault is named.
            TransientBrokerError: Airflow can't be queried now.
        """
        return (await self._answer()).resolved

    async def _answer(self) -> _ConnectionLookup:
        loop = asyncio.get_running_loop()
        asked = _asked.setdefault(loop, {})
        conn_id = self.jms_conn_id
        if (answer := asked.get(conn_id)) is None:
            answer = asked[conn_id] = loop.create_task(self._look_up())
            answer.add_done_callback(
                lambda _: loop.call_later(_ANSWER_HOLDS_SECONDS, asked.pop, conn_id, None)
            )
        found = await asyncio.shield(answer)
        if isinstance(found, JmsError):
            raise copy.copy(found) from found  # one exception object isn't raised in several tasks
        return found

    async def _look_up(self) -> _ConnectionLookup | JmsError:
        try:
            found = await self._afind()
            return _ConnectionLookup(found, self._resolve(found))
        except JmsError as error:
            return error
        except Exception as error:  # noqa: BLE001 - a backend's own; to raise it would end every trigger
            return TransientBrokerError(
                f"connection {self.jms_conn_id!r} can't be looked up: {type(error).__name__}: {error}"
            )

    async def asettings(self) -> ConnectionSettings:
        """Return the connection settings of the Airflow connection; for an event loop.

        Raises:
            ConfigurationError: The connection can't be used; every fault is named.
            TransientBrokerError: Airflow can't be queried now.
        """
        return settings_for(self.jms_conn_id, await self.aoptions())

    def layers(self) -> tuple[Layer, dict[str, Layer]]:
        """Return the unmerged options of this Airflow connection and of the connections that it refers to.

        Returns:
            The options of this connection, and a mapping by connection id. The mapping has this connection,
            the one that its `lookup://` URL names, the one that the latter's URL names, and so on.

        Raises:
            ConfigurationError: The connection is not defined, or its extra field is no JSON object.
        """
        found = self._find()
        return connection_layer(found[0]), {each.conn_id: connection_layer(each) for each in found}

    def activation(
        self, spec: ActivationSpec, *, instance: str = ""
    ) -> tuple[ActivationSpec, ConnectionSettings]:
        """Return the spec with the options in force, and the settings for its connection.

        The options come from the spec, the Airflow connection and `[jmsjca]`. Don't call this in an event
        loop, which the queries of connections and administered objects would block. A spec with a
        `connection_url` needs no Airflow connection: the default connection may be missing.

        Args:
            spec: The activation's spec as given.
            instance: Identifier of this consumer. It is appended to the client id if every consumer of the
                activation needs its own client id.

        Raises:
            ConfigurationError: Names every fault in the spec, the Airflow connection and `[jmsjca]`.

        Source: J41, J46-J49, J77, J113, W30, W31.
        """
        from airflow_provider_jmsjca.core.activation import ActivationSpec  # noqa: PLC0415 - seldom needed

        optional = spec.connection_url and self.jms_conn_id == self.default_conn_name
        resolved = resolve_levels(None if optional and not self._is_defined() else self, spec.layer())
        effective = with_lookups(ActivationSpec.from_resolved(resolved))
        settings = settings_for(self.jms_conn_id, resolved)
        return effective, with_client_id_of(settings, effective, instance)

    async def aresolved(self, activation: Layer) -> Resolved:
        """Return the effective options of an activation over this connection; for an event loop.

        Options are merged as in `activation`. Concurrent calls share one query of Airflow, as in `aoptions`.
        The default connection may be missing if the activation has a `connection_url`.

        Args:
            activation: The layer of the activation's spec.

        Raises:
            ConfigurationError: Names every fault in the spec, the Airflow connection and `[jmsjca]`.
            TransientBrokerError: Airflow can't be queried now.

        Source: J31, J68-J72, J113.
        """
        others = _lookups(activation)
        found: list[Connection] = []
        try:
            found = (await self._answer()).found
        except _UndefinedError:
            if not (_addresses(activation) and self.jms_conn_id == self.default_conn_name):
                raise
        connections = {each.conn_id: connection_layer(each) for each in found}
        for name in others:
            looked = (await JmsHook(name)._answer()).found  # noqa: SLF001  # the same class
            connections |= {each.conn_id: connection_layer(each) for each in looked}
        layer = connection_layer(found[0]) if found else None
        return _resolved(layer, activation, connections)

    async def astored_fields(self, activation: Layer) -> tuple[object, ...]:
        """Return the stored fields of this Airflow connection and of the connections that URLs refer to.

        Use this to find out whether a connection was edited: while the result stays equal, so do the
        settings. Comparing two results takes a tenth of the time of computing the settings. A connection that
        isn't defined is `None` in the result.

        Args:
            activation: The layer of the activation's spec, whose URL may refer to connections, too.

        Raises:
            ConfigurationError: A connection can't be used.
            TransientBrokerError: Airflow can't be queried now.
        """
        fields: list[object] = []
        for name in (self.jms_conn_id, *_lookups(activation)):
            try:
                found = (await JmsHook(name)._answer()).found  # noqa: SLF001  # the same class
            except _UndefinedError:
                fields.append(None)
                continue
            fields += [tuple(getattr(each, part) for part in _PARTS) for each in found]
        return tuple(fields)

    def _is_defined(self) -> bool:
        try:
            self.get_connection(self.jms_conn_id)
        except AirflowNotFoundException:
            return False
        return True

    def get_conn(self, username: str | None = None, password: str | None = None) -> JmsConnection:
        """Connect, or share a connection that this process has already.

        Args:
            username: User to log in as; `None`: the connection's user. A connection URL as the username
                replaces the connection's address, and may hold `username` and `password` in its query.
                `lookup://other` uses another Airflow connection.
            password: Password of that user; `None`: the connection's password.

        Returns:
            A connection to send, receive and use transactions; close it, or use it as a context manager.
            A closed connection is kept for other users until its idle timeout (`hooks.connection_cache`).

        Raises:
            ConfigurationError: The Airflow connection can't be used.
            TransientBrokerError: No host answered in time.
            AuthenticationError: The broker refuses the credentials.

        Source: J14, J41, J43, J75, J76, J78-J80, J89, J98-J100, J102.
        """
        found = self._find()
        other = [] if (name := lookup_name(username)) is None else JmsHook(name)._find()  # noqa: SLF001  # the same class
        call = call_layer(username, password) if username or password else None
        # A new cache for each connection, so that a name is looked up only once (J89).
        return self.connect(self._resolve([*found, *other], call), cached_find_destination())

    def connect(self, options: Resolved, find: Callable[[str], Destination]) -> JmsConnection:
        """Connect as `get_conn` does, but with given options and without querying Airflow.

        Args:
            options: The result of `options` or `aoptions`.
            find: Returns the destination for a name.

        Raises:
            JmsError: Any error of `get_conn`.
        """
        return _shared(settings_for(self.jms_conn_id, options), options, find)

    @classmethod
    def connect_for_limbo(
        cls, name: str, options: Resolved | None = None, find: Callable[[str], Destination] | None = None
    ) -> JmsConnection:
        """Connect for sending messages from limbo: without the client id, which a consumer may be using.

        Args:
            name: Name of the connection in limbo: an Airflow connection, or a member such as
                `orders@broker-a:61613`, one of several hosts.
            options: The result of `options` or `aoptions`; `None`: they are read from Airflow.
            find: Returns the destination for a name; `None`: objects are looked up in Airflow, too.

        Raises:
            ConfigurationError: The Airflow connection can't be used, or has no such host any more.
            JmsError: Any error of `get_conn`.
        """
        conn_id, member = split_limbo_name(name)
        options = cls(conn_id).options() if options is None else options
        settings = settings_for(conn_id, options)
        if member is not None:
            settings = settings_for_member(member, settings)
        return _shared(replace(settings, client_id=None), options, find or cached_find_destination())

    def test_connection(self) -> tuple[bool, str]:
        """Connect, and describe broker, encryption and user; on failure return the error in one line."""
        try:
            settings = self.settings()
            connection = connect(settings)
        except JmsError as error:
            # Airflow tests a copy under a generated name, which would mean nothing to the user.
            text = str(error).replace(f"connection {self.jms_conn_id!r}", "this connection")
            return False, " ".join(text.split())
        try:
            broker = connection.broker
        finally:
            connection.close()
        product = _PRODUCTS.get(broker.product, broker.product)
        encrypted = ", with TLS" if settings.scheme.endswith("ssl") else ""
        user = f", as {settings.username!r}" if settings.username else ", without a user"
        summary = f"{product} {broker.version} at {broker.address}{encrypted}{user}"
        return True, summary.replace("  ", " ")

    def _get(self, conn_id: str) -> Connection:
        with _connection_found(conn_id):
            return self.get_connection(conn_id)

    async def _aget(self, conn_id: str) -> Connection:
        with _connection_found(conn_id):
            return await self.aget_connection(conn_id)

    @staticmethod
    def _next_lookup(found: list[Connection]) -> str | None:
        """Return the id of the connection that the last of `found` refers to; `None` ends the search.

        A reference back to a connection in `found` also ends the search. Merging the options reports a cycle.
        """
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


def _shared(
    settings: ConnectionSettings, options: Resolved, find: Callable[[str], Destination]
) -> JmsConnection:
    from airflow_provider_jmsjca.hooks.connection_cache import (  # noqa: PLC0415 - sessions load with their first user
        jms_connection,
    )

    return jms_connection(settings, options, find)


@contextlib.contextmanager
def _connection_found(conn_id: str) -> Iterator[None]:
    try:
        yield
    except AirflowNotFoundException as error:
        raise _UndefinedError(undefined_text(conn_id)) from error


def resolve_levels(hook: JmsHook | None, activation: Layer | None) -> Resolved:
    """Return the effective options of an activation over a connection; either may be omitted.

    An activation with the URL `lookup://name` uses the Airflow connection of that name.

    Raises:
        ConfigurationError: Names every fault in the spec, the Airflow connection and `[jmsjca]`.

    Source: J31, J68-J72, J113.
    """
    layer: Layer | None = None
    connections: dict[str, Layer] = {}
    if hook is not None:
        layer, connections = hook.layers()
    for name in () if activation is None else _lookups(activation):
        connections = connections | JmsHook(name).layers()[1]
    return _resolved(layer, activation, connections)


def _resolved(
    connection: Layer | None, activation: Layer | None, connections: Mapping[str, Layer]
) -> Resolved:
    """Merge `[jmsjca]`, the Airflow connection and the activation into the options in force.

    Tasks, commands and triggers all use this function. `connections` has the layers of connections that
    URLs refer to, by id.
    """
    layers = [connector_layer(jms_entries(_section()), os.environ)]
    layers += [each for each in (connection, activation) if each is not None]
    return resolve(layers, connections)


def _addresses(activation: Layer) -> list[str]:
    options = {spelling: option_by_field(spelling) for spelling in activation.fields}
    return [
        str(activation.fields[spelling])
        for spelling, option in options.items()
        if option is not None and option.name == "connection_url" and activation.fields[spelling]
    ]


def _lookups(activation: Layer) -> list[str]:
    """Return the connections that the activation's own URL refers to. Source: J68, J69."""
    return [name for url in _addresses(activation) if (name := lookup_name(url))]


def _section() -> dict[str, str]:
    return {name: str(value) for name, value in (conf.getsection("jmsjca") or {}).items()}
