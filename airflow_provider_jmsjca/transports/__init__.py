"""Transports: they bring bytes to a broker and back. `connect` chooses one by the scheme of the settings.

`base` is the port, `capabilities` says what a broker can do, each folder is one transport. May import `core`.
"""

from __future__ import annotations

import difflib
import ipaddress
import threading
from importlib import import_module

from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.transports.base import Connection, ConnectionSettings, Transport

# Scheme -> module that has a `TRANSPORT`. Imported on first use: nobody pays for a transport not used.
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
"""Scheme -> broker that JMSJCA reaches by it and this package doesn't. Source: J3."""
_OTHER_PROTOCOLS = {"tcp", "ssl", "nio", "nio+ssl", "amqp", "amqps"}
"""Schemes of the supported brokers that aren't STOMP."""

_log = safe_logger(__name__)
_warned: set[str] = set()
_lock = threading.Lock()


def connect(settings: ConnectionSettings) -> Connection:
    """Open a connection.

    Two things are warned about once in a process, because others on the way could read along. One is a
    password that goes to another machine without TLS, the other a broker whose certificate isn't checked.

    Raises:
        ConfigurationError: These are no settings, or no transport knows their scheme.
        TransientBrokerError: No host answered in time; every attempt is named.
        ClientIdInUseError: Another connection has the client id.
        PermanentBrokerError: The broker refuses for good, for example because of a wrong password.
    """
    given: object = settings  # whatever a caller without types gives
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
    """Raise `ConfigurationError` if no transport knows the scheme."""
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
            f"User and password go to {', '.join(away)} unencrypted: everybody on the way can read them and "
            "all messages; use stomp+ssl://"
        )
    elif settings.scheme == "stomp+ssl" and settings.tls is not None and not settings.tls.verify:
        warning = (
            f"The certificate of {settings.url} is not checked (verify=false): whoever stands on the way can "
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
