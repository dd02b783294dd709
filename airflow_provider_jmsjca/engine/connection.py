"""JMS connections over any transport: what `JmsHook.get_conn()` gives to the user."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from airflow_provider_jmsjca.engine.session import AcknowledgeMode, JmsSession
from airflow_provider_jmsjca.engine.session_rules import SessionRules
from airflow_provider_jmsjca.engine.usage import Usage
from airflow_provider_jmsjca.errors import ConfigurationError, JmsError
from airflow_provider_jmsjca.transports.base import BrokerInfo, Capabilities, Connection, OnLost


class JmsConnection:
    """A connection in JMS terms. Use it as a context manager; closing it closes its sessions.

    Args:
        connection: The transport's connection.
        on_close: Called once instead of closing `connection`, if it belongs to a pool.
        rules: What holds for every session of it.
        on_lost: Takes the callback for a lost connection, if it belongs to a pool: the connection itself
            would keep it for life.
        usage: Where successful and failed uses are noted.
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
        """Which broker answered."""
        return self._connection.broker

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""
        return self._connection.capabilities

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
                `ignore_tx` every session is transacted, whatever is said here.
            acknowledge_mode: For sessions that aren't transacted; `transacted` beats it.
            prefetch: How many messages the broker may set aside for this session and destination; it bounds
                what the session can hold unsettled, so a transaction of 500 needs 500. `None` means 1 for a
                queue in AUTO mode, else 100; 1000 for a topic. Artemis counts 1,500 bytes as
                a message: give more for larger ones.

        Raises:
            ConfigurationError: The connection is closed, or has a session already and the option `strict`
                allows one; or `prefetch` is below 1: such a consumer would never receive anything.
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
                    self._connection, mode, prefetch, self._forget, rules.find, usage=self._usage
                )
                self._sessions.append(session)
                loss = self._loss
        except BaseException:
            if rules.limit is not None:
                rules.limit.release()
            raise
        if loss is not None:
            session.lose(loss)
        return session

    def close(self) -> None:
        """Close every session, then the connection. Closing twice is harmless."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            sessions = self._sessions[:]
        try:
            for session in sessions:
                session.close()
        finally:
            self._on_close()

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
                "the connection has a session already; JMSJCA.Strict allows one at a time: close it, or take "
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
            session.lose(reason)
