"""What a connection factory asks of the sessions of its connections."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.errors import TransientBrokerError

_log = logging.getLogger(__name__)


class SessionLimit:
    """Bounds how many sessions are open at once over one connection factory.

    Args:
        most: How many.
        timeout: How long to wait for one to be closed; `None` waits without limit.

    Source: J45.
    """

    def __init__(self, most: int, timeout: timedelta | None) -> None:
        self._most = most
        self._timeout = timeout
        self._free = threading.Semaphore(most)

    def acquire(self) -> None:
        """Take a place.

        Raises:
            TransientBrokerError: None became free in time.
        """
        if self._free.acquire(blocking=False):
            return
        if self._timeout is None:
            _log.warning("All %d sessions (pool_max_size) are in use; waiting for one of them", self._most)
            self._free.acquire()
        elif not self._free.acquire(timeout=self._timeout.total_seconds()):
            raise TransientBrokerError(
                f"no free session within {self._timeout.total_seconds():g} s (pool_timeout): "
                f"all {self._most} (pool_max_size) are in use"
            )

    def release(self) -> None:
        """Give a place back."""
        self._free.release()


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRules:
    """What holds for every session of a connection, whatever its user asks for.

    Attributes:
        always_transacted: A session that isn't asked to be transacted is so all the same. Source: J98, J126.
        single: A connection has one session at a time. Source: J27, J100.
        prefetch: For sessions that don't say one.
        limit: Bounds the sessions of several connections together. Source: J45.
        find: Returns the destination a text names. Source: J87-J89.
    """

    always_transacted: bool = False
    single: bool = False
    prefetch: int | None = None
    limit: SessionLimit | None = None
    find: Callable[[str], Destination] = Destination.parse
