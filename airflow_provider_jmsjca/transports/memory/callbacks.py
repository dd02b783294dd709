"""The thread a connection calls back on: there while there is something to say, gone when idle."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

_log = logging.getLogger(__name__)
_IDLE_SECONDS = 5.0


class CallbackThread:
    """Runs callbacks one after the other, in the order given, never in the caller's stack.

    Args:
        name: Of the thread.
        on_failure: Called with what a callback raised.
    """

    def __init__(self, name: str, on_failure: Callable[[Exception], None]) -> None:
        self._name = name
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._pending: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stopped = False

    def post(self, callback: Callable[[], None]) -> None:
        """Run it soon; dropped after `stop`."""
        with self._lock:
            if self._stopped:
                return
            self._pending.put(callback)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def stop(self, timeout: float) -> None:
        """Drop what is pending and wait for the running callback, unless it is the caller itself.

        Args:
            timeout: Longest wait in seconds.
        """
        with self._lock:
            self._stopped = True
            thread = self._thread
            self._pending.put(_nothing)
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def _run(self) -> None:
        while True:
            try:
                callback = self._pending.get(timeout=_IDLE_SECONDS)
            except Empty:
                with self._lock:
                    if self._pending.empty():
                        self._thread = None
                        return
                continue
            if self._stopped:
                return
            try:
                callback()
            except Exception as error:  # noqa: BLE001  # outermost edge of the thread, logged
                _log.exception("A callback of %s raised", self._name)
                self._on_failure(error)


def _nothing() -> None:
    """Wake the thread."""
