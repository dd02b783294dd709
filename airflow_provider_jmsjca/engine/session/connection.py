"""JMS connections over any transport, as `JmsHook.get_conn()` returns them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from types import TracebackType
from typing import Self

from airflow_provider_jmsjca.core.configuration.administered import destination_named
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.engine.connecting.pool import Usage
from airflow_provider_jmsjca.engine.session.session import AcknowledgeMode, JmsSession
from airflow_provider_jmsjca.errors import ConfigurationError, JmsError, TransientBrokerError
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.transports.base import BrokerInfo, Capabilities, Connection, OnLost

_log = safe_logger(__name__)


class SessionLimit:
    """Limits the sessions that are open at once over one connection factory.

    Args:
        most: Maximum number of open sessions.
        timeout: Time to wait until a session is closed; `None` waits without limit.

    Source: J45.
    """

    def __init__(self, most: int, timeout: timedelta | None) -> None:
        self._limit = most
        self._timeout = timeout
        self._free = threading.Semaphore(most)

    def acquire(self) -> None:
        """Reserve a session.

        Raises:
            TransientBrokerError: No session became free in time.
        """
        if self._free.acquire(blocking=False):
            return
        if self._timeout is None:
            _log.warning("All %d sessions (pool_max_size) are in use; waiting for one of them", self._limit)
            self._free.acquire()
        elif not self._free.acquire(timeout=self._timeout.total_seconds()):
            raise TransientBrokerError(
                f"no free session within {self._timeout.total_seconds():g} s (pool_timeout): "
                f"all {self._limit} (pool_max_size) are in use"
            )

    def release(self) -> None:
        """Release a reserved session."""
        self._free.release()


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRules:
    """Settings that a connection applies to each of its sessions. Users can override the prefetch only.

    Attributes:
        always_transacted: Every session is transacted, even if that isn't requested. Source: J98, J126.
        single: A connection has one session at a time. Source: J27, J100.
        prefetch: Prefetch of sessions that don't set one; `None`: the default of `JmsConnection.session`.
        limit: Limits the open sessions of several connections together; `None`: no limit. Source: J45.
        find: Returns the destination of a name. Source: J87-J89.
        parameters: Values for `${name}` in selectors, by names in lower case. Source: J181.
    """

    always_transacted: bool = False
    single: bool = False
    prefetch: int | None = None
    limit: SessionLimit | None = None
    find: Callable[[str], Destination] = destination_named
    parameters: Mapping[str, str] = field(default_factory=dict)


class JmsConnection:
    """A connection in JMS terms. Use it as a context manager; closing it closes its sessions.

    Args:
        connection: The transport's connection.
        on_close: Called once instead of closing `connection`, if `connection` belongs to a pool.
        rules: Rules for every session of the connection.
        on_lost: Function that registers a callback for the loss of the connection: `Lease.on_lost` for a
            pooled connection. `None`: `connection.on_lost`.
        usage: Records successful and failed uses.
    """

    def __init__(
        self,
        connection: Connection,
        on_close: Callable[[], None] | None = None,
        rules: SessionRules | None = None,
        on_lost: Callable[[OnLost], None] | None = None,
        *,
        usage: Usage | None = None,
    ) -> None:
        self._connection = connection
        self._rules = rules or SessionRules()
        self._usage = usage or Usage()
        self._on_close = connection.close if on_close is None else on_close
        self._sessions: list[JmsSession] = []
        self._loss: JmsError | None = None
        self._lock = threading.Lock()
        self._closed = False
        (connection.on_lost if on_lost is None else on_lost)(self._lost)

    @property
    def broker(self) -> BrokerInfo:
        """The connected broker."""
        return self._connection.broker

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities of the broker."""
        return self._connection.capabilities

    @property
    def secrets(self) -> tuple[str, ...]:
        """Credentials of the connection, which must never be shown or sent."""
        return self._connection.secrets

    def session(
        self,
        *,
        transacted: bool = False,
        acknowledge_mode: AcknowledgeMode = AcknowledgeMode.AUTO,
        prefetch: int | None = None,
    ) -> JmsSession:
        """Begin a session.

        Args:
            transacted: Whether sends and receipts take effect together, at `commit`. With the option
                `ignore_tx` every session is transacted, also with `False` here.
            acknowledge_mode: Mode of a session that isn't transacted; ignored if `transacted` is true.
            prefetch: Maximum number of messages that the broker sends ahead for this session and destination.
                It also limits unsettled messages: a transaction of 500 messages needs a prefetch of 500.
                `None`: the option `prefetch` of the connection, else 1 for a queue in AUTO mode, 100 for
                any other queue, 1000 for a topic. Artemis counts 1,500 bytes as a message: set a higher
                value for larger messages.

        Raises:
            ConfigurationError: The connection is closed. Or it has a session, and with the option `strict` it
                may have only one. Or `prefetch` is below 1: such a consumer would never receive anything.
            TransientBrokerError: As many sessions as `pool_max_size` allows are open, and none was closed
                within `pool_timeout`.
        """
        rules = self._rules
        prefetch = rules.prefetch if prefetch is None else prefetch
        if prefetch is not None and prefetch < 1:
            raise ConfigurationError(f"prefetch is {prefetch}; it must be at least 1")
        transacted = transacted or rules.always_transacted
        mode = AcknowledgeMode.SESSION_TRANSACTED if transacted else acknowledge_mode
        if rules.limit is not None:
            rules.limit.acquire()
        try:
            with self._lock:
                self._check_open()
                session = JmsSession(
                    self._connection,
                    mode,
                    prefetch,
                    self._forget,
                    rules.find,
                    usage=self._usage,
                    parameters=rules.parameters,
                )
                self._sessions.append(session)
                loss = self._loss
        except BaseException:
            if rules.limit is not None:
                rules.limit.release()
            raise
        if loss is not None:
            session.connection_lost(loss)
        return session

    def close(self) -> None:
        """Close every session, then the connection. Closing twice is harmless.

        The call waits for the broker's answer, but not longer than the reply timeout. If no answer arrives, a
        WARNING is logged and nothing is raised: the last acknowledged messages may be delivered again.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            sessions = self._sessions[:]
        with contextlib.ExitStack() as closing:
            closing.callback(self._on_close)
            for session in sessions:
                closing.callback(session.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ConfigurationError("the connection is closed")
        if self._rules.single and self._sessions:
            raise ConfigurationError(
                "the connection already has a session; JMSJCA.Strict allows one at a time. Close it, or use "
                "another connection"
            )

    def _forget(self, session: JmsSession) -> None:
        with self._lock:
            if session not in self._sessions:
                return
            self._sessions.remove(session)
        if self._rules.limit is not None:
            self._rules.limit.release()

    def _lost(self, reason: JmsError) -> None:
        with self._lock:
            self._loss = reason
            sessions = self._sessions[:]
        for session in sessions:
            session.connection_lost(reason)
