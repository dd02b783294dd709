"""Turns Airflow connections of type `jms` into the settings a transport connects with."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Protocol, TypeVar

from airflow_provider_jmsjca.core.precedence import Layer, Level, Resolved, connector_layer, resolve
from airflow_provider_jmsjca.core.url import LOOKUP, is_connection_url
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.transports import SCHEMES
from airflow_provider_jmsjca.transports.base import ConnectionSettings, TlsSettings

T = TypeVar("T")

_DEFAULT_SCHEME = "stomp"
_HIGHEST_PORT = 65535
_TLS = ("ca_file", "certificate_file", "key_file", "key_password", "server_name")

SHELL_ENTRIES = frozenset({"spool_path"})
"""Entries of `[jmsjca]` that are about Airflow's side and no JMS options."""


class AirflowConnection(Protocol):
    """The part of an Airflow connection that is read here."""

    conn_id: str
    conn_type: str | None
    host: str | None
    port: int | None
    login: str | None
    password: str | None
    schema: str | None
    extra: str | None


def connection_settings(
    connection: AirflowConnection,
    *,
    lookups: Mapping[str, AirflowConnection] | None = None,
    section: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> ConnectionSettings:
    """Return the settings an Airflow connection stands for.

    The host is a host name, several separated by commas, or a connection URL; the port holds for hosts that
    name none. Empty fields count as not given. Without a URL the transport is the connection's type if that
    is one (`stomp`), else STOMP.

    Args:
        connection: The connection.
        lookups: Those that a `lookup://` URL refers to, by their ids; see `lookup_of`.
        section: The entries of `[jmsjca]` in Airflow's configuration.
        environment: All environment variables.

    Raises:
        ConfigurationError: Every fault found; each names the connection and the field, never a secret.

    Source: J65-J80, J113.
    """
    return settings_of(
        resolve_connection(connection, lookups=lookups, section=section, environment=environment), connection
    )


def resolve_connection(
    connection: AirflowConnection,
    *,
    lookups: Mapping[str, AirflowConnection] | None = None,
    section: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Resolved:
    """Return every option with its origin; arguments and errors are those of `connection_settings`."""
    layers = [connector_layer(own_entries(section or {}), environment), connection_layer(connection)]
    return resolve(layers, {name: connection_layer(found) for name, found in (lookups or {}).items()})


def connection_layer(connection: AirflowConnection) -> Layer:
    """Return what an Airflow connection says, as the level of the connection factory.

    Raises:
        ConfigurationError: The extra field is no JSON object, or the port is out of range.
    """
    title = f"connection {connection.conn_id!r}"
    if connection.port is not None and not 1 <= connection.port <= _HIGHEST_PORT:
        raise ConfigurationError(f"{title}: port is {connection.port}; expected 1 to {_HIGHEST_PORT}")
    fields: dict[str, object] = {
        "connection_url": _url_text(connection),
        "username": connection.login,
        "password": connection.password,
        "virtual_host": connection.schema,
    }
    return Layer(
        level=Level.CONNECTION_FACTORY, source=title, fields=fields | _extra(connection.extra, title)
    )


def own_entries(section: Mapping[str, str]) -> dict[str, str]:
    """Return the entries of `[jmsjca]` that are JMS options."""
    return {name: value for name, value in section.items() if name not in SHELL_ENTRIES}


def lookup_of(connection: AirflowConnection) -> str | None:
    """Return the id of the connection that this one's URL refers to, if it does. Source: J69."""
    return lookup_name(connection.host)


def lookup_name(url: str | None) -> str | None:
    """Return the name in `lookup://name`; `None` for any other text."""
    scheme, separator, name = (url or "").strip().partition("://")
    return name.partition("?")[0] if separator and scheme.lower() == LOOKUP else None


def settings_of(resolved: Resolved, connection: AirflowConnection) -> ConnectionSettings:
    """Return the settings that resolved options stand for.

    Raises:
        ConfigurationError: There is no address, or no transport for it.
    """
    url = resolved.url
    title = f"connection {connection.conn_id!r}"
    if url is None:
        raise ConfigurationError(
            f"{title}: host is empty; expected a host name or a URL such as stomp://broker:61613"
        )
    if url.scheme not in SCHEMES:
        close = difflib.get_close_matches(url.scheme, SCHEMES, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        known = ", ".join(sorted(SCHEMES))
        raise ConfigurationError(
            f"{title}: no transport for scheme {url.scheme!r}{hint}; expected one of: {known}"
        )
    port = connection.port if url.text == _url_text(connection) and url.scheme != "vm" else None
    return ConnectionSettings(
        scheme=url.scheme,
        hosts=tuple((host, own or port) for host, own in url.hosts),
        username=_value(resolved, "username", str),
        password=_value(resolved, "password", str),
        client_id=_value(resolved, "client_id", str),
        virtual_host=_value(resolved, "virtual_host", str),
        tls=_tls(resolved),
        connect_timeout=_duration(resolved, "connect_timeout"),
        heart_beat=_duration(resolved, "heart_beat"),
        reply_timeout=_duration(resolved, "reply_timeout"),
        options=MappingProxyType({key: value for key, (value, _) in resolved.broker_options.items()}),
    )


def _url_text(connection: AirflowConnection) -> str:
    address = (connection.host or "").strip()
    if not address or is_connection_url(address):
        return address
    named = (connection.conn_type or "").lower()
    scheme = named if named in SCHEMES else _DEFAULT_SCHEME
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


def _tls(resolved: Resolved) -> TlsSettings | None:
    texts = {name: _value(resolved, name, str) for name in _TLS}
    verify = resolved["verify"] is not False
    if verify and not any(texts.values()):
        return None
    return TlsSettings(verify=verify, **texts)


def _value(resolved: Resolved, name: str, kind: type[T]) -> T | None:
    value = resolved[name]
    return value if isinstance(value, kind) else None


def _duration(resolved: Resolved, name: str) -> timedelta:
    value = resolved[name]
    if not isinstance(value, timedelta):
        raise TypeError(f"option {name} is a {type(value).__name__}, not a duration")
    return value
