"""How a listener learns that its task is killed, and how long it has then."""

from __future__ import annotations

from datetime import timedelta

WITHIN_IF_KILLED = timedelta(seconds=4)
"""Airflow ends the process 5 seconds after it told it to stop; the connection is to be closed by then."""


class Killed:
    """The word to a task that it is to end.

    A signal handler sets it, and may have interrupted the thread that asks for it: no lock can be taken then,
    as a `threading.Event` does.
    """

    def __init__(self) -> None:
        self._told = False

    def set(self) -> None:
        """Note that the task is told to end."""
        self._told = True

    def is_set(self) -> bool:
        """Return whether the task is told to end."""
        return self._told
