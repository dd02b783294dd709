"""Where an activation's messages go that aren't simply delivered and done with, as its spec says it.

Source: I15, I16, I26-I30, I39; J133-J142, W36.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, TypeAlias

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.administered import destination_named
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.options import OPTIONS_BY_NAME
from airflow_provider_jmsjca.core.options.choices import ContainerManagedEvents
from airflow_provider_jmsjca.core.redelivery import Delete, Move, MoveTarget, RedeliveryHandling
from airflow_provider_jmsjca.core.selector import Selector
from airflow_provider_jmsjca.engine.user_functions import plain_function
from airflow_provider_jmsjca.errors import ConfigurationError

Subscribes: TypeAlias = Callable[[JmsMessage], bool]

_DESTINATIONS = (
    "archive_destination",
    "error_destination",
    "unsubscribed_destination",
    "in_progress_destination",
    "source_queue",
)
_EVERY_EXCEPTION = "builtins.BaseException"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fates:
    """What the destinations of the WBIA adapter come to here.

    Attributes:
        handling: Redelivery handling. What it would delete goes to the error destination, if there is one.
        non_retryable: Exception classes after which a message has failed for good. With an error destination
            and nothing said about redelivery it is every one: the adapter doesn't try again.
        dead_letter: Where messages go that failed for good; the error destination is one of them.
        archive: Gets a copy of each message that was handled.
        source_queue: Gets each message that was handled, with container-managed events.
        reply_to: Where answers to what a handler sends go.
        unsubscribed: Gets the messages that nobody subscribes to.
        subscribes: Says whether somebody does.
        broker_selector: What the broker selects. With `unsubscribed` it is `None`: the selector is evaluated
            here, so that what it rejects doesn't stay in the queue.
    """

    handling: RedeliveryHandling
    non_retryable: frozenset[str]
    dead_letter: tuple[MoveTarget, ...]
    archive: Destination | None
    source_queue: Destination | None
    reply_to: Destination | None
    unsubscribed: Destination | None
    subscribes: Subscribes | None
    broker_selector: str | None

    @classmethod
    def of(cls, spec: ActivationSpec, subscribes: Subscribes | None = None) -> Self:
        """Return what a spec says.

        Args:
            spec: The activation's.
            subscribes: The listener's own word on who wants a message.

        Raises:
            ConfigurationError: Messages may be rejected and nothing says where they go, or the reverse; or
                `subscribes` is no plain function.
        """
        _refuse_circles(spec)
        if subscribes is not None:
            plain_function("subscribes", subscribes)
        error = _destination(spec.error_destination)
        unsubscribed = _destination(spec.unsubscribed_destination)
        selector = spec.selector_for()
        if unsubscribed is None and subscribes is not None:
            raise ConfigurationError(
                "unsubscribed_destination: missing, expected where to put the messages that subscribes "
                "rejects: nothing is dropped unless the configuration says so"
            )
        if unsubscribed is not None and subscribes is None and selector is None:
            raise ConfigurationError(
                f"unsubscribed_destination: got {unsubscribed}, expected a message_selector with it, or the"
                " listener's subscribes: without one every message is wanted"
            )
        handling, non_retryable = spec.redelivery, frozenset(spec.non_retryable)
        dead_letter = [*map(MoveTarget.of, spec.dead_letter_destinations)]
        if error is not None:
            target = MoveTarget.of(error)
            dead_letter += [target] if target not in dead_letter else []
            if handling == RedeliveryHandling.parse(str(OPTIONS_BY_NAME["redelivery_handling"].default)):
                non_retryable |= {_EVERY_EXCEPTION}
            handling = _undeleting(handling, target)
        wanted = _wanted(selector, subscribes) if unsubscribed is not None else None
        return cls(
            handling=handling,
            non_retryable=non_retryable,
            dead_letter=tuple(dead_letter),
            archive=_destination(spec.archive_destination),
            source_queue=(
                _destination(spec.source_queue)
                if spec.container_managed_events is ContainerManagedEvents.JMS
                else None
            ),
            reply_to=_destination(spec.reply_to_destination),
            unsubscribed=unsubscribed,
            subscribes=wanted,
            broker_selector=selector if unsubscribed is None else None,
        )


def _refuse_circles(spec: ActivationSpec) -> None:
    own = spec.destinations
    faults = [
        f"{name}: got {target}, which is consumed itself, expected another destination"
        for name in _DESTINATIONS
        if (target := _destination(getattr(spec, name))) in own
    ]
    faults += [
        f"dead_letter_destination: got {target}, which is consumed itself, expected another destination"
        for target in spec.dead_letter_destinations
        if target in own
    ]
    if faults:
        raise ConfigurationError(faults)


def _destination(text: str | None) -> Destination | None:
    return None if text is None else destination_named(text)


def _undeleting(handling: RedeliveryHandling, target: MoveTarget) -> RedeliveryHandling:
    """Return the handling with a move in place of a deletion (I28, I29)."""
    return RedeliveryHandling(
        tuple(
            Move.to(action.at, (target,)) if isinstance(action, Delete) else action
            for action in handling.actions
        )
    )


def _wanted(selector: str | None, subscribes: Subscribes | None) -> Subscribes:
    """Return one function for both; the selector compares as STOMP brokers do."""
    selected = None if selector is None else Selector.parse(selector, strings_as_numbers=True).matches
    if selected is None or subscribes is None:
        wanted = selected or subscribes
        assert wanted is not None, "one of them is given"  # noqa: S101
        return wanted
    own = subscribes
    return lambda message: selected(message) and own(message)
