"""Converts Airflow connections of type `jms` to the settings with which a transport connects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from airflow_provider_jmsjca.core.configuration.precedence import (
    Layer,
    Level,
    Resolved,
    connector_layer,
    resolve,
)
from airflow_provider_jmsjca.core.configuration.url import LOOKUP, ConnectionUrl, is_connection_url
from airflow_provider_jmsjca.core.options import OPTIONS_BY_NAME, read_value
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.transports import SCHEMES
from airflow_provider_jmsjca.transports.base import ConnectionSettings
from airflow_provider_jmsjca.transports.settings import to_connection_settings

if TYPE_CHECKING:
    from airflow_provider_jmsjca.core.activation import ActivationSpec

_DEFAULT_SCHEME = "stomp"
_TLS_SCHEME = "stomp+ssl"
_HIGHEST_PORT = 65535
_PORTLESS = ("vm", LOOKUP)

SHELL_ENTRIES = frozenset(
    {
        "spool_path",
        "spool_roots",
        "store_url",
        "reference_retention_days",
        "batch_url",
        "state_messages_destination",
        "state_messages_conn_id",
    }
)
"""Entries of `[jmsjca]` that configure Airflow's side and aren't JMS options."""


class AirflowConnection(Protocol):
    """The fields of an Airflow connection that this module reads."""

    conn_id: str
    conn_type: str | None
    host: str | None
    port: int | None
    login: str | None
    password: str | None
    schema: str | None
    extra: str | None


def resolve_connection(
    connection: AirflowConnection,
    *,
    lookups: Mapping[str, AirflowConnection] | None = None,
    section: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    call: Layer | None = None,
) -> Resolved:
    """Return every option of an Airflow connection with its origin, for `settings_for`.

    The host field contains a host name, several host names separated by commas, or a connection URL. The port
    applies to hosts without a port. Empty fields count as not given. Without a URL, the connection's type
    selects the transport if it names one (`stomp`); otherwise STOMP is used.

    Args:
        connection: The connection.
        lookups: The connections that a `lookup://` URL refers to, by their ids; see `lookup_of`.
        section: The entries of `[jmsjca]` in Airflow's configuration.
        environment: All environment variables.
        call: Credentials given in a call; they replace the connection's.

    Raises:
        ConfigurationError: Every fault found; each names the connection and the field, never a secret.

    Source: J65-J80, J113.
    """
    layers = [connector_layer(jms_entries(section or {}), environment), connection_layer(connection)]
    if call is not None:
        layers.append(call)
    return resolve(layers, {name: connection_layer(found) for name, found in (lookups or {}).items()})


def connection_layer(connection: AirflowConnection) -> Layer:
    """Return the options of an Airflow connection, as one configuration level before merging.

    Raises:
        ConfigurationError: The extra field isn't a JSON object, or the port is out of range.
    """
    title = f"connection {connection.conn_id!r}"
    if connection.port is not None and not 1 <= connection.port <= _HIGHEST_PORT:
        raise ConfigurationError(f"{title}: port is {connection.port}; expected 1 to {_HIGHEST_PORT}")
    extra = _extra(connection.extra, title)
    fields: dict[str, object] = {
        "connection_url": _address(connection, _wants_tls(extra, connection.host, title)),
        "username": connection.login,
        "password": connection.password,
        "virtual_host": connection.schema,
    }
    return Layer(level=Level.CONNECTION_FACTORY, source=title, fields=fields | extra)


def jms_entries(section: Mapping[str, str]) -> dict[str, str]:
    """Return the entries of `[jmsjca]` that are JMS options."""
    return {name: value for name, value in section.items() if name not in SHELL_ENTRIES}


def lookup_of(connection: AirflowConnection) -> str | None:
    """Return `other` for a connection with the URL `lookup://other`; `None` otherwise. Source: J69."""
    return lookup_name(connection.host)


def lookup_name(url: str | None) -> str | None:
    """Return the name in `lookup://name`; `None` for any other text."""
    scheme, separator, name = (url or "").strip().partition("://")
    return name.partition("?")[0] if separator and scheme.lower() == LOOKUP else None


def settings_for(conn_id: str, resolved: Resolved) -> ConnectionSettings:
    """Return the settings with which a transport connects; errors name the connection.

    Raises:
        ConfigurationError: There is no address, or no transport for it.
    """
    title = f"connection {conn_id!r}"
    if resolved.url is None:
        raise ConfigurationError(
            f"{title}: host is empty; expected a host name or a URL such as stomp://broker:61613"
        )
    try:
        return replace(to_connection_settings(resolved), name=conn_id)
    except ConfigurationError as error:
        raise ConfigurationError(f"{title}: {fault}" for fault in error.faults) from None


def _wants_tls(extra: Mapping[str, object], host: str | None, title: str) -> bool:
    """Return whether the field `tls` in a connection's extra is on.

    Raises:
        ConfigurationError: TLS is on, but the host is a URL with a scheme without TLS. Or the field isn't a
            boolean.
    """
    try:
        wanted = read_value(OPTIONS_BY_NAME["tls"], extra.get("tls"), "tls") is True
    except ConfigurationError as error:
        raise ConfigurationError(f"{title}: {fault}" for fault in error.faults) from None
    url = (host or "").strip().lower()
    if wanted and is_connection_url(url) and f"{_TLS_SCHEME}://" not in url:
        raise ConfigurationError(
            f"{title}: tls is on but the host is a URL without TLS; expected {_TLS_SCHEME}:// there, or a "
            "host name alone"
        )
    return wanted


def _address(connection: AirflowConnection, tls: bool) -> ConnectionUrl | str:
    """Return the URL of the broker, with the connection's port added to hosts without a port.

    If the connection has no port, or the URL is invalid, return the URL as text. Faults in it are reported
    later, together with all others.
    """
    text = _url_text(connection, tls)
    if not text or connection.port is None:
        return text
    try:
        url = ConnectionUrl.parse(text)
    except ConfigurationError:
        return text  # `read_layer` reports its fault together with all others
    return url if url.scheme in _PORTLESS else url.with_port(connection.port)


def _url_text(connection: AirflowConnection, tls: bool) -> str:
    address = (connection.host or "").strip()
    if not address or is_connection_url(address):
        return address
    named = (connection.conn_type or "").lower()
    scheme = named if named in SCHEMES else _DEFAULT_SCHEME
    if tls and scheme == _DEFAULT_SCHEME:
        scheme = _TLS_SCHEME
    hosts = (part.strip() for part in address.split(","))
    return f"{scheme}://" + ",".join(f"[{host}]" if _is_bare_ipv6(host) else host for host in hosts)


def _is_bare_ipv6(host: str) -> bool:
    return host.count(":") > 1 and not host.startswith("[")


def _extra(text: str | None, title: str) -> dict[str, object]:
    if text is None or not text.strip():
        return {}
    try:
        extra = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigurationError(
            f"{title}: extra is not JSON: {error.msg} at line {error.lineno} column {error.colno}; "
            'expected an object such as {"client_id": "airflow"}'
        ) from None  # the original holds the whole text, secrets included
    if not isinstance(extra, dict):
        raise ConfigurationError(f"{title}: extra is a JSON {type(extra).__name__}; expected an object")
    return extra


# Client ids: in Airflow's layers, only these two functions set the effective client id of a consumer.


def with_client_id(settings: ConnectionSettings, subscription_name: str | None) -> ConnectionSettings:
    """Return the settings for a consumer without a spec.

    If the settings have no client id, the name of the durable subscription becomes the client id.

    Source: J41, J49.
    """
    if settings.client_id or not subscription_name:
        return settings
    return replace(settings, client_id=subscription_name)


def with_client_id_of(
    settings: ConnectionSettings, spec: ActivationSpec, instance: str
) -> ConnectionSettings:
    """Return the settings with the client id of an activation, from `ActivationSpec.client_id_for`.

    Args:
        settings: Settings with the client id of the connection factory, if it has one.
        spec: The spec in force.
        instance: Identifier of this consumer, appended to the client id if every consumer of the activation
            needs its own client id; may be empty.

    Source: J41, J49, W30, W31.
    """
    chosen = spec.client_id_for(factory_client_id=settings.client_id, instance=instance)
    return replace(settings, client_id=chosen)
