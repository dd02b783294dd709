"""What is next for one message: the redelivery handling applied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

from airflow_provider_jmsjca.core.delivery import decisions
from airflow_provider_jmsjca.core.delivery.settings import DeliverySettings
from airflow_provider_jmsjca.core.delivery.units import InHand
from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.core.redelivery import Backoff, Delay, Delete, MessageState, Move
from airflow_provider_jmsjca.core.redelivery.actions import SLICE


@dataclass(frozen=True, slots=True)
class HandOver:
    """Deliver it now."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Deliver it later; `park` lets the broker keep it meanwhile."""

    pause: timedelta
    park: bool


@dataclass(frozen=True, slots=True)
class Transfer:
    """Move it."""

    targets: tuple[Destination, ...]


@dataclass(frozen=True, slots=True)
class Discard:
    """Delete it."""


@dataclass(frozen=True, slots=True)
class Again:
    """Try the same once more, a moment later."""


@dataclass(frozen=True, slots=True)
class Keep:
    """It can neither be delivered nor moved: leave it unsettled."""


Step: TypeAlias = HandOver | Pause | Transfer | Discard | Again | Keep
HAND_OVER = HandOver()
_AT_LEAST = timedelta(seconds=1)
KEEP = Keep()
AGAIN = Again()


def next_step(
    message: InHand, state: MessageState, settings: DeliverySettings, chance: Callable[[], float]
) -> Step:
    """Return what to do with a message whose turn it is.

    Source: J129, J134, J137, J171; I30; poison first.
    """
    origin = settings.sources[message.source]
    if message.unsubscribed:
        return KEEP if settings.unsubscribed is None else Transfer((settings.unsubscribed,))
    if message.poison:
        if targets := dead_letter_targets(state, settings, origin):
            return Transfer(targets)
        if settings.keep_poison:
            return KEEP
    action = (state.handling or settings.handling).action_for(message.seen)
    match action:
        case Move():
            return Transfer(action.targets(origin))
        case Delete():
            return Discard()
        case _ if message.undecodable:
            return KEEP
        case Delay() | Backoff() if not message.served:
            pause = action.pause(message.seen, chance())
            # A parked copy is sent anew: to a topic, it would reach every other subscriber a second time.
            topic = origin.kind is DestinationKind.TOPIC
            held = topic or message.group is not None or settings.batch_size > 1 or pause <= SLICE
            return Pause(pause, park=settings.park and not held)
    return HAND_OVER


def dead_letter_targets(
    state: MessageState, settings: DeliverySettings, origin: Destination
) -> tuple[Destination, ...]:
    """Return where poison from a destination goes; empty if nothing says where."""
    if settings.dead_letter:
        return tuple(target.destination(origin) for target in settings.dead_letter)
    for handling in (state.handling, settings.handling):
        if handling is not None and handling.actions and isinstance(handling.actions[-1], Move):
            return handling.actions[-1].targets(origin)
    return ()


def step_after_failure(
    message: InHand, state: MessageState, settings: DeliverySettings, chance: Callable[[], float]
) -> Step:
    """Return what to do with a message that could not be moved or deleted: it stays and is delivered.

    The last delay that stands before the action is served first, or a second if none does, so that such a
    message doesn't spin. Where moves are tried again, the message isn't delivered after the last one.

    Source: J142; P16.
    """
    if message.undecodable or message.unsubscribed or (message.poison and settings.keep_poison):
        return KEEP
    if message.moves_failed:
        return KEEP
    for action in reversed((state.handling or settings.handling).actions):
        if isinstance(action, Delay | Backoff):
            return Pause(action.pause(message.seen, chance()), park=False)
    return Pause(_AT_LEAST, park=False)


def settling(
    step: Pause | Transfer | Discard,
    unit: int,
    message: InHand,
    state: MessageState,
    settings: DeliverySettings,
) -> decisions.Park | decisions.Move | decisions.Delete:
    """Return the decision, in a unit of its own, that takes a message out of its destination."""
    match step:
        case Pause(pause=pause):
            return decisions.Park(unit=unit, delivery=message.delivery, pause=pause, seen=message.seen)
        case Transfer(targets=targets):
            return decisions.Move(
                unit=unit,
                delivery=message.delivery,
                targets=targets,
                redirect=settings.redirect,
                state=state,
            )
        case Discard():
            return decisions.Delete(unit=unit, delivery=message.delivery, seen=message.seen)
