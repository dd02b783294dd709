"""When to connect again after an outage."""

from __future__ import annotations

import enum
from datetime import timedelta

from airflow_provider_jmsjca.core.delivery.decisions import Level
from airflow_provider_jmsjca.core.delivery.settings import OutageSettings


class ActivationState(enum.StrEnum):
    """What an activation reports of itself. `CONNECTING` comes right after the start, always.

    Source: J119.
    """

    UP = "Up"
    DOWN = "Down"
    CONNECTING = "Connecting"
    DISCONNECTING = "Disconnecting"


class Outage:
    """Counts failed attempts and time spent suspended, from a loss until messages can come again.

    Source: J122; W24-W26.
    """

    def __init__(self, settings: OutageSettings) -> None:
        self._settings = settings
        self.over()

    def over(self) -> None:
        """A connection is up, and consumers are open on it."""
        self._attempts = 0
        self._reported = False
        self._left_to_suspend = timedelta(0)

    def began(self) -> None:
        """A connection that was up is lost."""
        self._left_to_suspend = self._settings.max_suspend

    def level(self) -> Level:
        """Return how loud to say that it is not connected. Source: J108."""
        first, self._reported = not self._reported, True
        if not self._settings.minimal_logging:
            return Level.WARNING
        return Level.ERROR if first else Level.DEBUG

    def pause(self, chance: float) -> tuple[ActivationState, timedelta]:
        """Return how long to wait before the next attempt, and the state meanwhile.

        Args:
            chance: A random number, 0 up to but not including 1.
        """
        if self._left_to_suspend > timedelta(0):
            pause = min(self._settings.init_suspend, self._left_to_suspend)
            self._left_to_suspend -= pause
            return ActivationState.DOWN, pause
        self._attempts += 1
        return ActivationState.CONNECTING, self._settings.backoff.wait(self._attempts, chance)
