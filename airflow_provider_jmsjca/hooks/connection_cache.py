"""Connections that outlive their users: closed, they are kept a while for the next one."""

from __future__ import annotations

import threading
from datetime import timedelta

from airflow_provider_jmsjca.core.precedence import Resolved
from airflow_provider_jmsjca.engine.connection import JmsConnection
from airflow_provider_jmsjca.engine.pool import DEFAULT_IDLE_TIMEOUT, ConnectionPool
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import ConnectionSettings

_pools: dict[timedelta, ConnectionPool] = {}
_lock = threading.Lock()


def jms_connection(settings: ConnectionSettings, options: Resolved) -> JmsConnection:
    """Return a connection: a cached one that is up, else a new one.

    Users of one process with the same settings share a connection, each with sessions of its own. One that
    nobody used for the idle timeout is closed. `no_connection_factory_cache` and `bypass_ra` open a
    connection for this user alone.

    Raises:
        TransientBrokerError: As `Transport.connect`; so are the other errors.

    Source: J14, J43, J99, J102, J106.
    """
    if options["no_connection_factory_cache"] or options["bypass_ra"]:
        return JmsConnection(connect(settings))
    lease = _pool(options["idle_timeout"]).borrow(settings)
    return JmsConnection(lease.connection, lease.release)


def _pool(idle_timeout: object) -> ConnectionPool:
    held = idle_timeout if isinstance(idle_timeout, timedelta) else DEFAULT_IDLE_TIMEOUT
    with _lock:
        return _pools.setdefault(held, ConnectionPool(idle_timeout=held))
