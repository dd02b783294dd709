"""Caches connections: a connection that its user closes stays open for a while for the next user."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from datetime import timedelta

from airflow_provider_jmsjca.core.configuration.administered import destination_named
from airflow_provider_jmsjca.core.configuration.precedence import Resolved
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.engine.connecting.pool import (
    DEFAULT_IDLE_TIMEOUT,
    DEFAULT_SIZE,
    ConnectionPool,
    settings_key,
)
from airflow_provider_jmsjca.engine.session.connection import (
    JmsConnection,
    SessionLimit,
    SessionRules,
)
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import ConnectionSettings

_pools: dict[tuple[timedelta, int], ConnectionPool] = {}
_limits: weakref.WeakValueDictionary[object, SessionLimit] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def jms_connection(
    settings: ConnectionSettings,
    options: Resolved,
    find: Callable[[str], Destination] = destination_named,
) -> JmsConnection:
    """Return a cached connection that is up, or open a new one.

    Users of one process with the same settings share a connection, each with its own sessions. A connection
    gets no further user if its last successful use is longer ago than the idle timeout. The same applies if
    the broker has refused a request on it. Such a connection is closed when its last user closes it. Above
    `connection_cache_size` connections, those without a user are closed, the longest idle ones first.

    `no_connection_factory_cache` and `bypass_ra` open a connection for this user alone. With `bypass_ra`,
    `ignore_tx`, `strict`, `prefetch` and `pool_max_size` have no effect.

    Args:
        settings: The connection settings.
        options: The effective options.
        find: Returns the destination for a name.

    Raises:
        JmsError: The connection can't be opened; see `Transport.connect`.

    Source: J14, J27, J43, J45, J80, J98, J99, J100, J102, J106, J126, J181.
    """
    parameters = {name: value for name, (value, _) in options.parameters.items()}  # drops the origins
    if options["bypass_ra"]:
        return JmsConnection(connect(settings), rules=SessionRules(find=find, parameters=parameters))
    prefetch = options["prefetch"]
    rules = SessionRules(
        always_transacted=options["ignore_tx"] is True,
        single=options["strict"] is True,
        prefetch=prefetch if isinstance(prefetch, int) else None,
        limit=_limit(settings, options),
        find=find,
        parameters=parameters,
    )
    if options["no_connection_factory_cache"]:
        return JmsConnection(connect(settings), rules=rules)
    lease = _pool(options).borrow(settings)
    return JmsConnection(lease.connection, lease.release, rules, lease.on_lost, usage=lease.usage)


def _pool(options: Resolved) -> ConnectionPool:
    idle, size = options["idle_timeout"], options["connection_cache_size"]
    idle = idle if isinstance(idle, timedelta) else DEFAULT_IDLE_TIMEOUT
    size = size if isinstance(size, int) else DEFAULT_SIZE
    with _lock:
        return _pools.setdefault((idle, size), ConnectionPool(idle_timeout=idle, size=size))


def _limit(settings: ConnectionSettings, options: Resolved) -> SessionLimit | None:
    most, timeout = options["pool_max_size"], options["pool_timeout"]
    if not isinstance(most, int):
        return None
    longest = timeout if isinstance(timeout, timedelta) else None
    with _lock:
        return _limits.setdefault((settings_key(settings), most, longest), SessionLimit(most, longest))


def _forget_after_fork() -> None:
    # The child has none of the parent's sessions. And a lock that another thread of the parent held during
    # the fork would stay locked in the child.
    global _lock  # noqa: PLW0603  # there is one for the module
    _lock = threading.Lock()
    _limits.clear()


os.register_at_fork(after_in_child=_forget_after_fork)
