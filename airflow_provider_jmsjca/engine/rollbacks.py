"""Units of work that are to be rolled back at the broker."""

from __future__ import annotations

import logging
import threading
from collections import deque

from airflow_provider_jmsjca.errors import JmsError
from airflow_provider_jmsjca.transports.base import UnitOfWork

_log = logging.getLogger("airflow_provider_jmsjca.listener")


class Rollbacks:
    """Rolled back one after the other, by whoever is about to go on with the same messages.

    Args:
        name: The listener's, for the log.

    Attributes:
        waiting: Those that aren't rolled back yet.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self.waiting: deque[UnitOfWork] = deque()

    def finish(self) -> None:
        """Roll all of them back; return when none is left, whoever has done it."""
        with self._lock:
            while self.waiting:
                try:
                    self.waiting[0].rollback()
                except JmsError as error:
                    # A connection that is lost has rolled back by itself.
                    _log.debug("%s: a rollback: %s", self._name, error)
                finally:
                    # Not before: others go on with the same messages once there is none to be seen.
                    self.waiting.popleft()
