"""`vm://name`: an in-process broker for tests of DAGs and of this package.

The broker fulfils the same contract as the real brokers and supports every optional operation of the
interface. Its messages live in the memory of the process: other processes can't see them, and they are lost
when the process ends.

    from airflow_provider_jmsjca import memory_broker

    memory_broker("orders").messages("dlq")      # inspect
    memory_broker("orders").kill()               # crash
    memory_broker("orders").restart()            # accept connections again
"""

from __future__ import annotations

from airflow_provider_jmsjca.errors import ClientIdInUseError, ConfigurationError, TransientBrokerError
from airflow_provider_jmsjca.transports.base import ConnectionSettings, Transport
from airflow_provider_jmsjca.transports.memory.broker import MemoryBroker, memory_broker
from airflow_provider_jmsjca.transports.memory.connection import MemoryConnection

__all__ = ["TRANSPORT", "MemoryBroker", "MemoryTransport", "memory_broker"]


class MemoryTransport:
    """Connects to in-process brokers."""

    def connect(self, settings: ConnectionSettings) -> MemoryConnection:
        """Connect to the first of the named brokers that is up.

        Raises:
            TransientBrokerError: None of the brokers is up.
            ClientIdInUseError: The client id is in use.
            AuthenticationError: A broker refused the credentials.
            ConfigurationError: No broker is named.
        """
        if not settings.hosts or not all(name for name, _ in settings.hosts):
            raise ConfigurationError("a vm URL needs the name of a broker, for example vm://test")
        refusals: list[TransientBrokerError] = []
        for name, _ in settings.hosts:
            try:
                return MemoryConnection(memory_broker(name), settings)
            except TransientBrokerError as refusal:
                refusals.append(refusal)
        in_use = any(isinstance(refusal, ClientIdInUseError) for refusal in refusals)
        error = ClientIdInUseError if in_use else TransientBrokerError
        raise error("; ".join(map(str, refusals)))


TRANSPORT: Transport = MemoryTransport()
