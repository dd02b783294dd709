"""Messages that leave a unit undelivered: moved, deleted, parked or staged, each by a unit of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from airflow_provider_jmsjca.core.delivery.decisions import Decision, Delete, Move, Park, Stage
from airflow_provider_jmsjca.core.delivery.settings import DeliverySettings
from airflow_provider_jmsjca.core.delivery.sightings import Sightings
from airflow_provider_jmsjca.core.delivery.staging import Staging
from airflow_provider_jmsjca.core.delivery.steps import (
    AGAIN,
    Discard,
    Pause,
    Step,
    Transfer,
    settling,
    step_after_failure,
)
from airflow_provider_jmsjca.core.delivery.table import UnitTable
from airflow_provider_jmsjca.core.delivery.units import InHand, Phase, Unit
from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.core.redelivery import MessageState

# After so many moves that failed, or were cut off, it is redirected, and after one more delivered.
_MOVES = 2

TakeOut: TypeAlias = Move | Delete | Park | Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class TakingOut:
    """Decides how messages are taken out, and what is next when that fails.

    Moves that fail are counted over connections, because some brokers close the connection with their
    refusal, and the message comes anew.

    Attributes:
        under_way: The unit that has the message, the message, and the decision, by the decision's unit.

    Source: J142, J167; P16; I9.
    """

    settings: DeliverySettings
    units: UnitTable
    sightings: Sightings
    staging: Staging
    chance: Callable[[], float]
    decide: Callable[[Decision], None]
    warn: Callable[[InHand, str], None]
    under_way: dict[int, tuple[Unit, InHand, TakeOut]] = field(default_factory=dict)

    def stage(self, unit: Unit, message: InHand) -> None:
        """Put a message into the in-progress queue."""
        self.staging.begin(message.message_id)
        self._begin(unit, message, Stage(unit=self.units.next_number(), delivery=message.delivery))

    def begin(self, unit: Unit, message: InHand, step: Pause | Transfer | Discard) -> None:
        """Park, move or delete a message."""
        state = self.sightings.state(message)
        decision = settling(step, self.units.next_number(), message, state, self.settings)
        if isinstance(decision, Move) and self.settings.move_retries is None:
            again = self.sightings.moves_failed(message) >= _MOVES
            decision = replace(decision, redirect=decision.redirect or again)
        self._begin(unit, message, decision)

    def _begin(self, unit: Unit, message: InHand, decision: TakeOut) -> None:
        unit.phase = Phase.SETTLING
        self.under_way[decision.unit] = unit, message, decision
        self.decide(decision)

    def unless_in_vain(self, move: Transfer, message: InHand, state: MessageState) -> Step:
        """Return the move, or what is next if there were enough of them."""
        retries = self.settings.move_retries
        failed = self.sightings.moves_failed(message)
        if failed <= (_MOVES if retries is None else retries):
            return move
        self.warn(message, "no move of it came to a good end; it stays here")
        if retries is not None:
            message.moves_failed = failed
        return step_after_failure(message, state, self.settings, self.chance)

    def failed(self, unit: Unit, message: InHand, decision: TakeOut, failure: Failure) -> Step | None:
        """Go down the cascade: copy, redirect, stay and be delivered.

        Returns:
            What to do with the message; `None`: it is being redirected.
        """
        if isinstance(decision, Move) and not decision.redirect:
            self.warn(message, f"it could not be copied ({failure.message}); it is redirected unchanged")
            self._begin(unit, message, replace(decision, unit=self.units.next_number(), redirect=True))
            return None
        self.warn(message, f"{type(decision).__name__.lower()} failed ({failure.message}); it stays here")
        match decision:
            case Stage():
                self.staging.end(message.message_id, done=False)
                return AGAIN
            case Park(pause=pause):
                return Pause(pause, park=False)
            case Move():
                self.sightings.move_failed(message)
                if (retries := self.settings.move_retries) is not None:
                    message.moves_failed += 1
                    if message.moves_failed <= retries:
                        return AGAIN
        return step_after_failure(message, self.sightings.state(message), self.settings, self.chance)
