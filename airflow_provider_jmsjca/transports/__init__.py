"""Connections to brokers, with one transport for each protocol.

`connect` selects the transport by the URL scheme. `base` defines the interface that every transport
implements, and `capabilities` describes brokers. Each folder is one transport. This folder may import `core`.
"""

from __future__ import annotations

import difflib
import ipaddress
import threading
from importlib import import_module

from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.transports.base import Connection, ConnectionSettings, Transport

# Scheme -> module with a `TRANSPORT`. Imported on first use, so an unused transport costs nothing.
_MODULES = {
    "stomp": "airflow_provider_jmsjca.transports.stomp",
    "stomp+ssl": "airflow_provider_jmsjca.transports.stomp",
    "vm": "airflow_provider_jmsjca.transports.memory",
}
SCHEMES = frozenset(_MODULES)
_OTHER_BROKERS = {
    **dict.fromkeys(("stcms", "stcmss", "stcms453"), "the JMS IQ Manager"),
    **dict.fromkeys(("wmq", "wmq5"), "IBM MQ"),
    **dict.fromkeys(("t3", "t3s"), "WebLogic JMS"),
    **dict.fromkeys(("mq", "mqtcp", "mqssl", "httpjms", "httpsjms"), "Sun Java System Message Queue"),
    "jboss": "JBoss MQ",
}
"""Scheme -> broker that JMSJCA supports and this package doesn't. Source: J3."""
_OTHER_PROTOCOLS = {"tcp", "ssl", "nio", "nio+ssl", "amqp", "amqps"}
"""Schemes of protocols other than STOMP that the supported brokers speak."""

_log = safe_logger(__name__)
_warned: set[str] = set()
_lock = threading.Lock()


def connect(settings: ConnectionSettings) -> Connection:
    """Open a connection.

    Logs a warning, once per process, if network eavesdroppers could read the traffic. That is the case if a
    password is sent to another machine without TLS, or if the certificate of a broker isn't verified.

    Raises:
        ConfigurationError: The argument is not a settings object, or no transport supports its scheme.
        TransientBrokerError: No host answered in time; the text lists every attempt.
        ClientIdInUseError: Another connection has the client id.
        PermanentBrokerError: The broker refuses permanently, for example because of a wrong password.
    """
    given: object = settings  # untyped callers may pass any object
    if not isinstance(given, ConnectionSettings):
        raise ConfigurationError(
            f"connect: expected ConnectionSettings, not {type(given).__name__}; connection_settings() makes "
            "them of a URL"
        )
    refuse_unknown_scheme(settings.scheme)
    _warn_once(settings)
    transport: Transport = import_module(_MODULES[settings.scheme]).TRANSPORT
    return transport.connect(settings)


def refuse_unknown_scheme(scheme: str) -> None:
    """Raise `ConfigurationError` if no transport supports the scheme."""
    if scheme not in SCHEMES:
        close = difflib.get_close_matches(scheme, SCHEMES, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        if scheme in _OTHER_PROTOCOLS:
            hint = " (another protocol; use the broker's STOMP port)"
        elif scheme in _OTHER_BROKERS:
            there = _OTHER_BROKERS[scheme]
            hint = f" ({there} can't be reached; move its messages to ActiveMQ, Artemis or RabbitMQ)"
        raise ConfigurationError(
            f"connection_url: no transport for scheme {scheme!r}{hint}; "
            f"expected one of: {', '.join(sorted(SCHEMES))}"
        )


def _warn_once(settings: ConnectionSettings) -> None:
    if settings.scheme == "stomp":
        away = [host for host, _ in settings.hosts if not _is_loopback(host)]
        if not (settings.password and away):
            return
        warning = (
            f"User and password go to {', '.join(away)} unencrypted: anyone on the network path can read "
            "them and all messages; use stomp+ssl://"
        )
    elif settings.scheme == "stomp+ssl" and settings.tls is not None and not settings.tls.verify:
        warning = (
            f"The certificate of {settings.url} is not checked (verify=false): an attacker in between can "
            "pose as the broker and read the password; name its certificate in ca_file"
        )
    else:
        return
    with _lock:
        if warning in _warned:
            return
        _warned.add(warning)
    _log.warning(warning)


def _is_loopback(host: str) -> bool:
    name = host.lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
