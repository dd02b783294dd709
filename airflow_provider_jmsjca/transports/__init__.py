"""How bytes reach a broker. `connect` chooses the transport by the scheme of the settings."""

from __future__ import annotations

from importlib import import_module

from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.transports.base import Connection, ConnectionSettings, Transport

# Scheme -> module that has a `TRANSPORT`. Imported on first use: nobody pays for a transport not used.
_MODULES = {
    "stomp": "airflow_provider_jmsjca.transports.stomp",
    "stomp+ssl": "airflow_provider_jmsjca.transports.stomp",
    "vm": "airflow_provider_jmsjca.transports.memory",
}
SCHEMES = frozenset(_MODULES)


def connect(settings: ConnectionSettings) -> Connection:
    """Open a connection.

    Raises:
        ConfigurationError: No transport knows the scheme; otherwise as `Transport.connect`.
    """
    module = _MODULES.get(settings.scheme)
    if module is None:
        known = ", ".join(sorted(f"{scheme}://" for scheme in SCHEMES))
        raise ConfigurationError(f"no transport for scheme {settings.scheme!r}; known: {known}")
    transport: Transport = import_module(module).TRANSPORT
    return transport.connect(settings)
