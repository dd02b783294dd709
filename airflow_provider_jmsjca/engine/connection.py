"""JMS connections over any transport: what `JmsHook.get_conn()` gives to the user."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from airflow_provider_jmsjca.engine.session import AcknowledgeMode, JmsSession
from airflow_provider_jmsjca.errors import ConfigurationError, JmsError
from airflow_provider_jmsjca.transports.base import BrokerInfo, Capabilities, Connection


class JmsConnection:
    """A connection in JMS terms. Use it as a context manager; closing it closes its sessions.

    Args:
        connection: The transport's connection.
        on_close: Called once instead of closing `connection`, if it belongs to a pool.
    """

    def __init__(self, connection: Connection, on_close: Callable[[], None] | None = None) -> None:
        self._connection = connection
        self._on_close = connection.close if on_close is None else on_close
        self._sessions: list[JmsSession] = []
        self._loss: JmsError | None = None
        self._lock = threading.Lock()
        self._closed = False
        connection.on_lost(self._lost)

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
            transacted: Whether sends and receipts take effect together, at `commit`.
            acknowledge_mode: For sessions that aren't transacted; `transacted` beats it.
            prefetch: How many messages the broker may set aside for this session and destination; it bounds
                what the session can hold unsettled, so a transaction of 500 needs 500. `None` means 1 for a
                queue in AUTO and DUPS_OK mode, else 100; 1000 for a topic. Artemis counts 1,200 bytes as
                a message: give more for larger ones.

        Raises:
            ConfigurationError: The connection is closed, or `prefetch` is below 1: such a consumer would
                never receive anything.
        """
        if prefetch is not None and prefetch < 1:
            raise ConfigurationError(f"prefetch is {prefetch}; it must be at least 1")
        mode = AcknowledgeMode.SESSION_TRANSACTED if transacted else acknowledge_mode
        with self._lock:
            if self._closed:
                raise ConfigurationError("the connection is closed")
            session = JmsSession(self._connection, mode, prefetch, self._forget)
            self._sessions.append(session)
            loss = self._loss
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

    def _forget(self, session: JmsSession) -> None:
        with self._lock:
            if session in self._sessions:
                self._sessions.remove(session)

    def _lost(self, reason: JmsError) -> None:
        with self._lock:
            self._loss = reason
            sessions = self._sessions[:]
        for session in sessions:
            session.lose(reason)
