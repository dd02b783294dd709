"""When a listener that doesn't run for ever ends."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from airflow_provider_jmsjca.engine.batch_spec import EndReason
from airflow_provider_jmsjca.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Whichever is reached first; `None` is never reached.

    Attributes:
        max_messages: So many messages are settled.
        run_for: It has run this long.
        idle_for: Nothing came, and nothing was in hand, for this long while the broker was there.

    Raises:
        ConfigurationError: One is out of range.
    """

    max_messages: int | None = None
    run_for: timedelta | None = None
    idle_for: timedelta | None = None

    def __post_init__(self) -> None:
        faults = []
        if self.max_messages is not None and self.max_messages < 1:
            faults.append(f"max_messages is {self.max_messages}; expected at least 1")
        faults.extend(
            f"{name} is {value}; expected more than 0"
            for name, value in (("run_for", self.run_for), ("idle_for", self.idle_for))
            if value is not None and value <= timedelta(0)
        )
        if faults:
            raise ConfigurationError(faults)

    def reached(self, *, settled: int, elapsed: float, idle: float) -> tuple[EndReason, str] | None:
        """Return which end is reached, also in words; `None` if none is.

        Args:
            settled: Messages.
            elapsed: Seconds since the start.
            idle: Seconds without anything to do.
        """
        if self.max_messages is not None and settled >= self.max_messages:
            return EndReason.COUNT, f"{settled} messages are settled"
        if self.run_for is not None and elapsed >= self.run_for.total_seconds():
            return EndReason.TIME, f"it has run for {self.run_for}"
        if self.idle_for is not None and idle >= self.idle_for.total_seconds():
            return EndReason.IDLE, f"nothing came for {self.idle_for}"
        return None
