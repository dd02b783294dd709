"""Who is to hear that a shared connection was lost, for as long as they use it."""

from __future__ import annotations

import logging
import threading

from airflow_provider_jmsjca.errors import JmsError
from airflow_provider_jmsjca.transports.base import Connection, OnLost

_log = logging.getLogger(__name__)


class Losses:
    """Passes the loss of a connection on to those who watch.

    A connection keeps its callbacks for life; one that is shared for weeks would collect those of every user
    it ever had, and all that hangs on them.
    """

    def __init__(self, connection: Connection) -> None:
        self._lock = threading.Lock()
        self._watchers: list[OnLost] = []
        self._reason: JmsError | None = None
        connection.on_lost(self._lost)

    def watch(self, callback: OnLost) -> None:
        """Call back once when the connection is lost; before this returns if it already is."""
        with self._lock:
            reason = self._reason
            if reason is None:
                self._watchers.append(callback)
        if reason is not None:
            callback(reason)

    def forget(self, callback: OnLost) -> None:
        """Don't call back any more; harmless if it was called or is unknown."""
        with self._lock:
            if callback in self._watchers:
                self._watchers.remove(callback)

    def __len__(self) -> int:
        """How many watch."""
        with self._lock:
            return len(self._watchers)

    def _lost(self, reason: JmsError) -> None:
        with self._lock:
            self._reason = reason
            watchers, self._watchers = self._watchers, []
        for callback in watchers:
            try:
                callback(reason)
            except Exception:  # noqa: BLE001 - the edge: the others must be told too
                _log.exception("A callback that was told of the lost connection failed")
