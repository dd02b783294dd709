"""The next step for one message: redelivery handling, settlement, reaction to a failed settlement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import NamedTuple, TypeAlias

from airflow_provider_jmsjca.core.copies.dead_letter import WAYS
from airflow_provider_jmsjca.core.delivery import decisions
from airflow_provider_jmsjca.core.delivery.counts import FailedMoves
from airflow_provider_jmsjca.core.delivery.settings import DeliverySettings
from airflow_provider_jmsjca.core.delivery.states import Condition, InFlightMessage
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

# A connection may be lost by chance. So after the first loss, the same copy is sent once more, and after each
# further loss a less complete one. When there is no less complete copy, the message is redirected, and after
# one more loss delivered.
_BY_CHANCE = 1
_MOVES = _BY_CHANCE + WAYS

_NO_EXCEPTION = Failure(
    class_names=(),
    message="no exception is known: the process or connection ended, or the handler requested a rollback",
)

NAMES = {
    decisions.MoveMessage: "move",
    decisions.DeleteMessage: "delete",
    decisions.Park: "park",
    decisions.Stage: "stage",
}

TakeOut: TypeAlias = decisions.MoveMessage | decisions.DeleteMessage | decisions.Park | decisions.Stage


@dataclass(frozen=True, slots=True)
class HandOver:
    """Deliver the message now."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Deliver the message later; with `park`, the broker keeps it until then."""

    pause: timedelta
    park: bool


@dataclass(frozen=True, slots=True)
class Transfer:
    """Move the message; with `to_limbo` through limbo, where it stays if there are no targets."""

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
    """Return the next step of a message that a unit of work has taken.

    The settings determine the step of a message that is in doubt, has no subscriber, or is poison. For poison
    without such a setting, and for all other messages, the redelivery handling determines the step.

    Source: J129, J134, J137, J171; I30.
    """
    origin = settings.sources[message.arrival.source]
    match message.condition:
        case Condition.IN_DOUBT:
            return SHELVE
        case Condition.UNSUBSCRIBED:
            if settings.unsubscribed is not None:
                return Transfer((settings.unsubscribed,))
            return Discard() if settings.discard_unsubscribed else SHELVE if settings.limbo else KEEP
        case Condition.POISON | Condition.UNDECODABLE:
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
        case _ if message.condition is Condition.UNDECODABLE:
            return KEEP
        case Delay() | GrowingDelay() if not message.served:
            pause = action.pause(message.seen, chance())
            # A copy that was sent to a topic would reach every other subscriber a second time.
            topic = origin.kind is DestinationKind.TOPIC and not settings.parks_topic
            held = topic or bool(message.arrival.group) or settings.batch_size > 1 or pause <= SLICE
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


def is_deliverable(message: InFlightMessage, settings: DeliverySettings) -> bool:
    """Return whether a message that can't be moved may be delivered instead."""
    arrival = message.arrival
    if arrival.undecodable is not None or arrival.unsubscribed:
        return False
    return not (message.condition is Condition.POISON and settings.keep_poison)


def step_after_failure(
    message: InFlightMessage, state: MessageState, settings: DeliverySettings, chance: Callable[[], float]
) -> Step:
    """Return the step after a failed move or deletion: deliver the message later, or leave it unsettled.

    The delay is the last one of the redelivery handling, or one second if the handling has none. Without a
    delay, the message would be redelivered in a tight loop. A message that can't be delivered is left
    unsettled. So is a message whose last retry of a move has failed.

    Source: J142; P16.
    """
    if message.moves_failed or not is_deliverable(message, settings):
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
    *,
    moves: FailedMoves,
) -> decisions.Park | decisions.MoveMessage | decisions.DeleteMessage:
    """Return the decision that removes a message from its destination, in a separate unit.

    Some brokers close the connection when they refuse a message. So moves that lost their connection are
    counted in `moves`, over all connections. From the second one on, each copy is less complete than the one
    before. After the fifth, the message itself is sent unchanged, unless moves are retried or limbo is
    available.
    """
    match step:
        case Pause(pause=pause):
            return decisions.Park(
                unit=unit, delivery=message.arrival.delivery, pause=pause, seen=message.seen
            )
        case Transfer(targets=targets, to_limbo=to_limbo):
            if state.failure is None and not message.arrival.unsubscribed:
                state = replace(state, failure=_NO_EXCEPTION)
            counted = 0 if to_limbo else moves.lost
            gives_up = counted >= _MOVES and settings.move_retries is None and not settings.limbo
            return decisions.MoveMessage(
                unit=unit,
                delivery=message.arrival.delivery,
                targets=targets,
                redirect=settings.redirect or gives_up,
                state=state,
                less=0 if gives_up or not counted else min(counted - _BY_CHANCE, WAYS - 1),
                to_limbo=to_limbo,
            )
        case Discard(repeated=repeated):
            return decisions.DeleteMessage(
                unit=unit, delivery=message.arrival.delivery, seen=message.seen, repeated=repeated
            )


class AfterFailure(NamedTuple):
    """The reaction to a settlement that the broker refused.

    Attributes:
        step: The next step; `None`: move the message itself, unchanged.
        text: Text for the log, with a placeholder for the reason.
        counts: Whether the failure counts as a failed move of the message.
    """

    step: Step | None
    text: str
    counts: bool = False


def after_failure(  # noqa: C901 - one case for each row of the table
    message: InFlightMessage,
    decision: TakeOut,
    state: MessageState,
    settings: DeliverySettings,
    chance: Callable[[], float],
    *,
    moves: FailedMoves,
) -> AfterFailure:
    """Return the reaction to a settlement that the broker refused.

    | refused settlement | condition | next step |
    |---|---|---|
    | a copy to targets | | move the message itself, unchanged |
    | a move of the message itself | limbo is available | put the message in limbo |
    | | retries are left | retry a moment later |
    | | all retries have failed | leave it unsettled |
    | | the message was delivered after an earlier failed move | leave it unsettled |
    | | otherwise | deliver it after the last delay of its redelivery handling |
    | limbo | the message can't be decoded | leave it unsettled |
    | | otherwise | retry a moment later |
    | the in-progress queue | | retry a moment later |
    | a delayed copy (`Park`) | | hold the message until the delay is over |
    | a deletion | | deliver the message after the last delay of its redelivery handling |

    Where the table says "deliver", a message that can't be delivered is left unsettled instead.

    Args:
        message: The message.
        decision: The refused decision.
        state: Count, last exception and other notes about the message.
        settings: The rules.
        chance: Returns a random number from 0 to 1.
        moves: Outcomes of the message's earlier moves.

    Source: J142, J167; P16; I9.
    """
    stays = f"{NAMES[type(decision)]} failed ({{}}); it stays on the queue"
    match decision:
        case decisions.Stage():
            return AfterFailure(AGAIN, stays)
        case decisions.Park(pause=pause):
            return AfterFailure(Pause(pause, park=False), stays)
        case decisions.MoveMessage(to_limbo=True):
            return AfterFailure(
                KEEP if message.arrival.undecodable is not None else AGAIN, stays, counts=True
            )
        case decisions.MoveMessage(redirect=False):
            return AfterFailure(None, "it could not be copied ({}); the original is moved unchanged")
        case decisions.MoveMessage(targets=targets) if settings.limbo:
            return AfterFailure(Transfer(targets, to_limbo=True), "move failed ({}); putting it in limbo")
        case decisions.MoveMessage():
            if settings.move_retries is not None:
                if message.moves_failed < settings.move_retries:
                    return AfterFailure(AGAIN, stays, counts=True)
                return AfterFailure(KEEP, stays, counts=True)
            if moves.delivered:
                return AfterFailure(KEEP, stays, counts=True)
            return AfterFailure(step_after_failure(message, state, settings, chance), stays, counts=True)
        case decisions.DeleteMessage():
            return AfterFailure(step_after_failure(message, state, settings, chance), stays)


def unless_exhausted(
    move: Transfer,
    message: InFlightMessage,
    state: MessageState,
    settings: DeliverySettings,
    chance: Callable[[], float],
    *,
    moves: FailedMoves,
) -> tuple[Step, str | None]:
    """Return a move, or the step to take in its place if too many moves of the message failed.

    That step depends on the settings:

    - With limbo, the step moves the message to limbo.
    - With `move_retries`, the message is left unsettled.
    - Otherwise the message is delivered later, see `step_after_failure`. If it fails again and still can't be
      moved, it is left unsettled.

    While a message is left unsettled, later messages are processed.

    Args:
        move: The move.
        message: The message to move.
        state: Count, last exception and other notes about the message.
        settings: Settings of the delivery.
        chance: Returns a random number, 0 up to but not including 1, for jitter.
        moves: Outcomes of the earlier moves of the message.

    Returns:
        The step, and a text for the log; the text is `None` if the step is the move.
    """
    retries = settings.move_retries
    few = moves.lost <= _MOVES if retries is None or settings.limbo else moves.failed <= retries
    if few or move.to_limbo:
        return move, None
    if settings.limbo:
        return replace(move, to_limbo=True), "moving it failed repeatedly; putting it in limbo"
    stays = "moving it failed repeatedly; leaving it on the queue"
    if retries is not None or moves.delivered:
        return KEEP, stays
    return step_after_failure(message, state, settings, chance), stays
