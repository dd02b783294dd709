"""Which subscription leads where."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeAlias

from airflow_provider_jmsjca.errors import ConfigurationError, PermanentBrokerError
from airflow_provider_jmsjca.transports.stomp.frames import Frame, escape

Route: TypeAlias = Callable[[Frame, bytes], None]


class Routes:
    """The subscriptions of one connection by their ids, as the broker writes those."""

    def __init__(self) -> None:
        self._routes: dict[bytes, Route] = {}
        self._lock = threading.Lock()
        self._is_fresh = True
        self._is_taken = False
        self.get = self._routes.get

    def add(self, identifier: str, route: Route) -> bytes:
        """Lead the messages of a subscription to `route`; return its id as the broker will write it.

        Raises:
            PermanentBrokerError: There is one of this id.
            ConfigurationError: There is one that was promised to be the only one.
        """
        key = escape(identifier).encode()
        with self._lock:
            if self._is_taken and self._routes:
                raise ConfigurationError(
                    "this connection receives for one consumer, which was promised to be the only one: "
                    "open another connection"
                )
            self._is_fresh = False
            taken = self._routes.setdefault(key, route) is not route
        if taken:
            raise PermanentBrokerError(
                f"the subscription {identifier!r} is already active on this connection"
            )
        return key

    def take_alone(self) -> bool:
        """Reserve the connection for one consumer; say whether nothing was ever received over it."""
        with self._lock:
            fresh, self._is_fresh = self._is_fresh, False
            self._is_taken = self._is_taken or fresh
            return fresh

    def remove(self, key: bytes) -> None:
        """Drop what still comes for a subscription."""
        with self._lock:
            self._routes.pop(key, None)
            if not self._routes:
                self._is_taken = False
