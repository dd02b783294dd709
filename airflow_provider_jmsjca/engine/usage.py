"""Whether a connection that is kept still deserves trust."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from airflow_provider_jmsjca.errors import PermanentBrokerError, TransientBrokerError


class Usage:
    """When a connection was last used successfully, and whether the broker refused something on it.

    Successful is a send, a receipt or a commit without an error from the broker; opening it counts too. As a
    context manager it notes errors of the broker that pass through.

    Args:
        clock: Returns seconds, monotonic.

    Source: J14, J43.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._succeeded_at = clock()
        self._failed = False
        self._listeners = 0
        self._lock = threading.Lock()

    def succeeded(self) -> None:
        """A message was sent or received."""
        self._succeeded_at = self._clock()

    def failed(self) -> None:
        """The broker refused something, or the connection broke: it isn't lent again."""
        self._failed = True

    def listen(self) -> None:
        """Somebody listens on it: until `unlisten` heart-beats prove it, and quiet hours don't count."""
        with self._lock:
            self._listeners += 1

    def unlisten(self) -> None:
        """Somebody listens no more; from now on time counts again."""
        with self._lock:
            self._listeners -= 1
        self.succeeded()

    def left(self, idle_seconds: float) -> float:
        """Return for how many seconds it is still valid, if nobody uses it; 0 or less: it is invalid."""
        if self._failed:
            return 0.0
        if self._listeners:
            return idle_seconds
        return self._succeeded_at + idle_seconds - self._clock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(exc_value, TransientBrokerError | PermanentBrokerError):
            self.failed()
