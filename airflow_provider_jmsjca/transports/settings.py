"""Converts resolved configuration into connection settings of a transport."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta
from types import MappingProxyType
from typing import TypeVar

from airflow_provider_jmsjca.core.configuration.overruling import overruled
from airflow_provider_jmsjca.core.configuration.precedence import Layer, Resolved, resolve
from airflow_provider_jmsjca.core.configuration.url import ConnectionUrl
from airflow_provider_jmsjca.core.options import Level
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.transports import refuse_unknown_scheme
from airflow_provider_jmsjca.transports.base import ConnectionSettings, TlsSettings

_T = TypeVar("_T")
_PATHLESS = ("stomp", "vm")
_DEFAULTS = ConnectionSettings(scheme="", hosts=())

_log = safe_logger(__name__)
_said: set[str] = set()
_lock = threading.Lock()


def to_connection_settings(resolved: Resolved) -> ConnectionSettings:
    """Return the connection settings for the configured broker.

    Logs a warning once per process for each option of the connection or the installation that has no effect.
    Does the same for each option of the activation that the connection or the installation overrides.

    Args:
        resolved: The result of `resolve`.

    Raises:
        ConfigurationError: The configuration has no URL of a broker, no transport supports the URL's scheme,
            or the URL has a path, which its scheme does not support.

    Source: J3, J32, J38, J46, J65, J76, J77.
    """
    url = resolved.url
    if url is None:
        raise ConfigurationError(
            "connection_url: missing at every level, expected for example stomp://broker:61613"
        )
    check_url(url)
    _warn_without_effect(resolved)
    for sentence in overruled(resolved):
        warn_once(_log, sentence)
    return ConnectionSettings(
        scheme=url.scheme,
        hosts=url.hosts,
        username=_typed(resolved, "username", str, None),
        password=_typed(resolved, "password", str, None),
        client_id=_typed(resolved, "client_id", str, None),
        virtual_host=_typed(resolved, "virtual_host", str, None),
        tls=_tls(resolved),
        connect_timeout=_typed(resolved, "connect_timeout", timedelta, _DEFAULTS.connect_timeout),
        heart_beat=_typed(resolved, "heart_beat", timedelta, _DEFAULTS.heart_beat),
        reply_timeout=_typed(resolved, "reply_timeout", timedelta, _DEFAULTS.reply_timeout),
        max_frame_size=_typed(resolved, "max_frame_size", int, _DEFAULTS.max_frame_size),
        management_url=_typed(resolved, "management_url", str, None),
        options=MappingProxyType({key: value for key, (value, _) in resolved.broker_options.items()}),
    )


def connection_settings(url: str) -> ConnectionSettings:
    """Return the settings for `connect`, from a broker URL with options in its query.

    Args:
        url: For example `stomp://app:secret@localhost:61613?heart_beat=5`. User and password may also be in
            the query.

    Raises:
        ConfigurationError: `url` is not a broker URL, no transport supports its scheme, or an option is
            invalid.
    """
    layer = Layer(level=Level.CONNECTION_FACTORY, source="connection", fields={"connection_url": url})
    return to_connection_settings(resolve([layer]))


def check_url(url: ConnectionUrl) -> None:
    """Refuse a broker URL that no transport supports.

    Raises:
        ConfigurationError: No transport supports the scheme, or the URL has a path, which its scheme does not
            support.
    """
    refuse_unknown_scheme(url.scheme)
    if url.path.strip("/") and url.scheme.startswith(_PATHLESS):
        raise ConfigurationError(
            f"connection_url: the path {url.path!r} is not supported by {url.scheme}://; "
            "if it is a virtual host, set the option virtual_host"
        )


def _warn_without_effect(resolved: Resolved) -> None:
    for value in resolved.values.values():
        level = value.origin.level
        if value.option.acts or level is None or level is Level.ACTIVATION:  # a listener warns about its own
            continue
        warn_once(_log, f"{value.origin}: {value.option.status}")


def warn_once(log: logging.Logger, sentence: str) -> None:
    """Log `sentence` as a warning, unless this process has logged the same sentence before."""
    with _lock:
        if sentence in _said:
            return
        _said.add(sentence)
    log.warning("%s", sentence)


def _tls(resolved: Resolved) -> TlsSettings | None:
    settings = TlsSettings(
        ca_file=_typed(resolved, "ca_file", str, None),
        certificate_file=_typed(resolved, "certificate_file", str, None),
        key_file=_typed(resolved, "key_file", str, None),
        key_password=_typed(resolved, "key_password", str, None),
        verify=resolved["verify"] is not False,
        server_name=_typed(resolved, "server_name", str, None),
    )
    return None if settings == TlsSettings() else settings


def _typed(resolved: Resolved, name: str, kind: type[_T], default: _T | None) -> _T:
    value = resolved[name]
    return value if isinstance(value, kind) else default  # type: ignore[return-value]  # `None` where the setting may be
