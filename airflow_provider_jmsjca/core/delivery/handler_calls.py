"""What handlers do with the messages they were called with, as far as their units of work are concerned."""

from __future__ import annotations

from airflow_provider_jmsjca.core.delivery.completion import Completion
from airflow_provider_jmsjca.core.delivery.sightings import Sightings
from airflow_provider_jmsjca.core.delivery.table import UnitTable
from airflow_provider_jmsjca.core.delivery.units import Phase
from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.errors import PoisonMessageError

_POISON = f"{PoisonMessageError.__module__}.{PoisonMessageError.__qualname__}"


class HandlerCalls:
    """Handler calls by number, from when they began until their unit of work is over.

    What comes of a call that is over is ignored.

    Args:
        units: Where the calls are found.
        sightings: Told of what failed.
        completion: Says how the unit of work goes on.
        non_retryable: Names of exception classes after which a message isn't delivered again.

    Source: J192, J197, J200-J202.
    """

    def __init__(
        self,
        units: UnitTable,
        sightings: Sightings,
        completion: Completion,
        non_retryable: frozenset[str],
    ) -> None:
        self._units = units
        self._sightings = sightings
        self._completion = completion
        self._non_retryable = non_retryable | {_POISON}

    def returned(self, call: int) -> None:
        """The handler returned."""
        unit, _ = self._units.of_call(call)
        if unit is not None and unit.call == call:
            unit.call = None
            self._completion.go_on(unit)

    def raised(self, call: int, failure: Failure) -> None:
        """The handler raised."""
        unit, message = self._units.of_call(call)
        if unit is None or unit.call != call:
            return
        self._sightings.failed(unit.members if message is None else (message,), failure)
        if message is not None:
            message.poison = failure.is_any(self._non_retryable)
        unit.rollback = True
        unit.unacknowledged.discard(call)
        self.returned(call)

    def rollback_asked(self, call: int) -> None:
        """The handler, or a thread it left the message to, wants no commit; a batch ends at once (J202)."""
        unit, _ = self._units.of_call(call)
        if unit is not None and unit.phase is not Phase.COMMITTING:
            unit.rollback = True
            self._completion.hurry(unit)

    def acknowledged(self, call: int) -> None:
        """One of the messages that hold-until-ack waits for is done."""
        unit, _ = self._units.of_call(call)
        if unit is not None:
            unit.unacknowledged.discard(call)
            if unit.phase is Phase.HOLDING and not unit.unacknowledged:
                self._completion.finish(unit)

    def key_of(self, call: int) -> str | None:
        """Return the tracker's key for the message of a call; `None` if the call is over or has none."""
        _, message = self._units.of_call(call)
        return None if message is None else message.key
