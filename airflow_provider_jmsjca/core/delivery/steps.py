"""The next step for one message: redelivery handling, and how a message leaves its queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TypeAlias

from airflow_provider_jmsjca.core.copies.dead_letter import WAYS
from airflow_provider_jmsjca.core.delivery import decisions
from airflow_provider_jmsjca.core.delivery.in_flight import (
    DeliveryCounts,
    InFlightMessage,
    InProgressTracking,
    Phase,
    Unit,
    UnitTable,
)
from airflow_provider_jmsjca.core.delivery.settings import DeliverySettings
from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.core.redelivery import (
    Delay,
    Delete,
    GrowingDelay,
    MessageState,
    Move,
    MoveTarget,
)
from airflow_provider_jmsjca.core.redelivery.actions import SLICE

# A connection may be lost by chance: after the first time the same is tried once more, then each time less of
# the message. When nothing is left to leave out, it is redirected, and after one more loss delivered.
_BY_CHANCE = 1
_MOVES = _BY_CHANCE + WAYS

_NO_EXCEPTION = Failure(
    class_names=(),
    message="no exception is known: the process or connection that had it ended, or its handler asked for a "
    "rollback",
)

_NAMES = {
    decisions.MoveMessage: "move",
    decisions.DeleteMessage: "delete",
    decisions.Park: "park",
    decisions.Stage: "stage",
}

TakeOut: TypeAlias = decisions.MoveMessage | decisions.DeleteMessage | decisions.Park | decisions.Stage


@dataclass(frozen=True, slots=True)
class HandOver:
    """Deliver it now."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Deliver it later; with `park` the broker keeps it until then."""

    pause: timedelta
    park: bool


@dataclass(frozen=True, slots=True)
class Transfer:
    """Move it; with `to_limbo` through limbo, where it stays if there are no targets."""

    targets: tuple[Destination, ...]
    to_limbo: bool = False


@dataclass(frozen=True, slots=True)
class Discard:
    """Delete the message; `repeated` means that it was handled before."""

    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Retry:
    """Retry the previous step once, a moment later."""


@dataclass(frozen=True, slots=True)
class Keep:
    """Leave the message unsettled: it can neither be delivered nor moved."""


Step: TypeAlias = HandOver | Pause | Transfer | Discard | Retry | Keep
HAND_OVER = HandOver()
_AT_LEAST = timedelta(seconds=1)
KEEP = Keep()
SHELVE = Transfer((), to_limbo=True)
AGAIN = Retry()


def next_step(  # noqa: C901, PLR0912 - the table of precedence
    message: InFlightMessage, state: MessageState, settings: DeliverySettings, chance: Callable[[], float]
) -> Step:
    """Return the next step of the message to process.

    Source: J129, J134, J137, J171; I30; poison first.
    """
    origin = settings.sources[message.source]
    if message.set_aside:
        return SHELVE
    if message.unsubscribed:
        if settings.unsubscribed is not None:
            return Transfer((settings.unsubscribed,))
        return Discard() if settings.discard_unsubscribed else SHELVE if settings.limbo else KEEP
    if message.poison:
        if targets := dead_letter_targets(state, settings):
            return Transfer(tuple(dict.fromkeys(target.destination(origin) for target in targets)))
        if settings.discard_poison:
            return Discard()
        if settings.limbo:
            return SHELVE
        if settings.keep_poison:
            return KEEP
    if settings.shelve_at is not None and message.seen >= settings.shelve_at:
        return SHELVE
    action = (state.handling or settings.handling).action_for(message.seen)
    match action:
        case Move():
            return Transfer(action.targets(origin))
        case Delete():
            return Discard()
        case _ if message.undecodable:
            return KEEP
        case Delay() | GrowingDelay() if not message.served:
            pause = action.pause(message.seen, chance())
            # A copy that was sent to a topic would reach every other subscriber a second time.
            topic = origin.kind is DestinationKind.TOPIC and not settings.parks_topic
            held = topic or message.group is not None or settings.batch_size > 1 or pause <= SLICE
            return Pause(pause, park=settings.non_blocking_redelivery and not held)
    return HAND_OVER


def dead_letter_targets(state: MessageState, settings: DeliverySettings) -> tuple[MoveTarget, ...]:
    """Return the targets for poison; empty if none are configured."""
    if settings.dead_letter:
        return settings.dead_letter
    for handling in (state.handling, settings.handling):
        if handling is not None and handling.actions and isinstance(handling.actions[-1], Move):
            return handling.actions[-1].all_targets
    return ()


def step_after_failure(
    message: InFlightMessage, state: MessageState, settings: DeliverySettings, chance: Callable[[], float]
) -> Step:
    """Return the step after a failed move or deletion: the message stays and is delivered.

    The last delay of the handling is served first, or one second if it has none, so that the message isn't
    redelivered in a tight loop. If moves are retried, the message isn't delivered after the last retry.

    Source: J142; P16.
    """
    if message.undecodable or message.unsubscribed or (message.poison and settings.keep_poison):
        return KEEP
    if message.moves_failed:
        return KEEP
    for action in reversed((state.handling or settings.handling).actions):
        if isinstance(action, Delay | GrowingDelay):
            return Pause(action.pause(message.seen, chance()), park=False)
    return Pause(_AT_LEAST, park=False)


def settling(
    step: Pause | Transfer | Discard,
    unit: int,
    message: InFlightMessage,
    state: MessageState,
    settings: DeliverySettings,
) -> decisions.Park | decisions.MoveMessage | decisions.DeleteMessage:
    """Return the decision, in a unit of its own, that takes a message out of its destination."""
    match step:
        case Pause(pause=pause):
            return decisions.Park(unit=unit, delivery=message.delivery, pause=pause, seen=message.seen)
        case Transfer(targets=targets, to_limbo=to_limbo):
            if state.failure is None and not message.unsubscribed:
                state = replace(state, failure=_NO_EXCEPTION)
            return decisions.MoveMessage(
                unit=unit,
                delivery=message.delivery,
                targets=targets,
                redirect=settings.redirect,
                state=state,
                to_limbo=to_limbo,
            )
        case Discard(repeated=repeated):
            return decisions.DeleteMessage(
                unit=unit, delivery=message.delivery, seen=message.seen, repeated=repeated
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """Decides how messages are moved, deleted or parked, and the step after a failure.

    Moves that fail are counted over connections, because some brokers close the connection with their
    refusal, and the message is redelivered: the next copy then has less of the message. A message that was
    delivered because it could not be moved, and fails again, and can't be moved again, stays: those behind it
    go on.

    Attributes:
        under_way: The unit that has the message, the message, and the decision, by the decision's unit.

    Source: J142, J167; P16; I9.
    """

    settings: DeliverySettings
    units: UnitTable
    delivery_counts: DeliveryCounts
    staging: InProgressTracking
    chance: Callable[[], float]
    decide: Callable[[decisions.Decision], None]
    warn: Callable[[InFlightMessage, str], None]
    under_way: dict[int, tuple[Unit, InFlightMessage, TakeOut]] = field(default_factory=dict)

    def stage(self, unit: Unit, message: InFlightMessage) -> None:
        """Put a message into the in-progress queue."""
        self.staging.begin(message.message_id)
        self._begin(unit, message, decisions.Stage(unit=self.units.next_number(), delivery=message.delivery))

    def begin(self, unit: Unit, message: InFlightMessage, step: Pause | Transfer | Discard) -> None:
        """Park, move or delete a message."""
        state = self.delivery_counts.state(message)
        decision = settling(step, self.units.next_number(), message, state, self.settings)
        if (
            isinstance(decision, decisions.MoveMessage)
            and not decision.to_limbo
            and (lost := self.delivery_counts.failed_moves(message).lost)
        ):
            decision = replace(decision, less=min(lost - _BY_CHANCE, WAYS - 1))
            if lost >= _MOVES and self.settings.move_retries is None and not self.settings.limbo:
                decision = replace(decision, redirect=True, less=0)
        self._begin(unit, message, decision)

    def _begin(self, unit: Unit, message: InFlightMessage, decision: TakeOut) -> None:
        unit.phase = Phase.SETTLING
        self.under_way[decision.unit] = unit, message, decision
        self.decide(decision)

    def unless_exhausted(self, move: Transfer, message: InFlightMessage, state: MessageState) -> Step:
        """Return the move, or the next step if too many moves failed."""
        retries = self.settings.move_retries
        in_vain = self.delivery_counts.failed_moves(message)
        limbo = self.settings.limbo
        few = in_vain.lost <= _MOVES if retries is None or limbo else in_vain.failed <= retries
        if few or move.to_limbo:
            return move
        if limbo:
            self.warn(message, "no move of it came to a good end; it is put in limbo")
            return replace(move, to_limbo=True)
        self.warn(message, "no move of it came to a good end; it stays here")
        if retries is not None:
            message.moves_failed = in_vain.failed
        elif in_vain.delivered:
            return KEEP
        return step_after_failure(message, state, self.settings, self.chance)

    def failed(
        self, unit: Unit, message: InFlightMessage, decision: TakeOut, failure: Failure
    ) -> Step | None:
        """Go down the cascade: copy, redirect, stay and be delivered.

        Returns:
            The next step; `None`: the message is being redirected.
        """
        shelved = isinstance(decision, decisions.MoveMessage) and decision.to_limbo
        if isinstance(decision, decisions.MoveMessage) and not decision.redirect and not shelved:
            self.warn(message, f"it could not be copied ({failure.message}); it is redirected unchanged")
            self._begin(
                unit, message, replace(decision, unit=self.units.next_number(), redirect=True, less=0)
            )
            return None
        self.warn(
            message,
            f"{_NAMES[type(decision)]} failed ({failure.message}); it stays here"
            if shelved or not (isinstance(decision, decisions.MoveMessage) and self.settings.limbo)
            else f"move failed ({failure.message}); it is put in limbo",
        )
        match decision:
            case decisions.Stage():
                self.staging.end(message.message_id, done=False)
                return AGAIN
            case decisions.Park(pause=pause):
                return Pause(pause, park=False)
            case decisions.MoveMessage() if shelved:
                message.moves_failed += 1
                return KEEP if message.undecodable else AGAIN
            case decisions.MoveMessage() if self.settings.limbo:
                return Transfer(decision.targets, to_limbo=True)
            case decisions.MoveMessage():
                delivered = self.delivery_counts.failed_moves(message).delivered
                self.delivery_counts.move_failed(message, lost=False)
                if (retries := self.settings.move_retries) is not None:
                    message.moves_failed += 1
                    if message.moves_failed <= retries:
                        return AGAIN
                elif delivered:
                    return KEEP
        return step_after_failure(message, self.delivery_counts.state(message), self.settings, self.chance)
