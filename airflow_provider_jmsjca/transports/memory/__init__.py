"""`vm://name`: a broker inside this process, for tests of DAGs and of this package.

It obeys the same contract as the real brokers and can do everything the port knows. What it holds ends with
the process: nothing is shared with other processes, and nothing is on disk.

    from airflow_provider_jmsjca.transports.memory import broker

    broker("orders").messages("dlq")      # look
    broker("orders").kill()               # break
    broker("orders").restart()            # mend
"""

from __future__ import annotations

from airflow_provider_jmsjca.errors import ClientIdInUseError, ConfigurationError, TransientBrokerError
from airflow_provider_jmsjca.transports.base import ConnectionSettings, Transport
from airflow_provider_jmsjca.transports.memory.broker import Broker, broker
from airflow_provider_jmsjca.transports.memory.connection import MemoryConnection

__all__ = ["TRANSPORT", "Broker", "MemoryTransport", "broker"]


class MemoryTransport:
    """Connects to brokers of this process."""

    def connect(self, settings: ConnectionSettings) -> MemoryConnection:
        """Connect to the first of the named brokers that is up.

        Raises:
            TransientBrokerError: None is up.
            ClientIdInUseError: The client id is in use.
            AuthenticationError: A broker refused the credentials.
            ConfigurationError: No broker is named.
        """
        if not settings.hosts or not all(name for name, _ in settings.hosts):
            raise ConfigurationError("a vm URL needs the name of a broker, for example vm://test")
        refusals: list[TransientBrokerError] = []
        for name, _ in settings.hosts:
            try:
                return MemoryConnection(broker(name), settings)
            except TransientBrokerError as refusal:
                refusals.append(refusal)
        in_use = any(isinstance(refusal, ClientIdInUseError) for refusal in refusals)
        error = ClientIdInUseError if in_use else TransientBrokerError
        raise error("; ".join(map(str, refusals)))


TRANSPORT: Transport = MemoryTransport()
