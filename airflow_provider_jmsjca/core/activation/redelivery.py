"""Converts all options for redelivery into one `RedeliveryHandling`."""

from __future__ import annotations

from datetime import timedelta

from airflow_provider_jmsjca.core.activation.fields import ActivationFields
from airflow_provider_jmsjca.core.configuration.administered import LOOKUP, DestinationReference, is_discard
from airflow_provider_jmsjca.core.configuration.overruling import ATTEMPTS, CLIENT_PROPERTIES
from airflow_provider_jmsjca.core.destination import DestinationKind
from airflow_provider_jmsjca.core.redelivery import (
    Action,
    Delay,
    Delete,
    Move,
    MoveKind,
    MoveTarget,
    RedeliveryHandling,
)
from airflow_provider_jmsjca.errors import ConfigurationError


def redelivery_handling(spec: ActivationFields) -> RedeliveryHandling:
    """Return the redelivery handling that the spec configures.

    `max_attempts` counts deliveries, with `redelivery_delay` between them. Three attempts with a delay of one
    minute are `1:60000; 3:move(...)`, because the third redelivery would be the fourth attempt.

    Raises:
        ConfigurationError: The handling can't be read, or a required value is missing.

    Source: J59, J130, J133; P6-P9, P15; C14.
    """
    try:
        if any(getattr(spec, name) is not None for name in ATTEMPTS):
            return _from_attempts(spec)
        if any(getattr(spec, name) is not None for name in CLIENT_PROPERTIES):
            kind = spec.redelivery_move_kind
            action = spec.redelivery_action.value if spec.redelivery_action else ""
            return RedeliveryHandling.from_client_properties(
                delay=spec.redelivery_delays or "",
                after=spec.redelivery_action_after,
                action="" if action == "none" else action,
                move_kind="auto" if kind is None or kind is MoveKind.SAME else kind.value,
                move_name=spec.redelivery_move_name or "",
            )
        return RedeliveryHandling.parse(spec.redelivery_handling)
    except ConfigurationError as error:
        raise ConfigurationError(_named(fault) for fault in error.faults) from None


def _named(fault: str) -> str:
    known = ("redelivery_", "dead_letter_", "max_attempts")
    return fault if fault.startswith(known) else f"redelivery_handling: {fault}"


def _from_attempts(spec: ActivationFields) -> RedeliveryHandling:
    actions: list[Action] = []
    attempts = spec.max_attempts
    if spec.redelivery_delay is not None and attempts != 1:
        actions.append(Delay(1, spec.redelivery_delay // timedelta(milliseconds=1)))
    if attempts is not None:
        texts = spec.dead_letter_destination or filter(None, (spec.error_destination,))
        targets = [_target(text) for text in texts if not is_discard(text)]
        if targets:
            actions.append(Move.to(attempts, targets))
        elif spec.dead_letter_destination or spec.error_destination:
            actions.append(Delete(attempts))
        elif not spec.use_store:  # with `use_store`, limbo keeps the message
            raise ConfigurationError(
                "dead_letter_destination: missing, expected a destination for messages after max_attempts, "
                "or the word discard to drop them, or use_store to keep them in limbo"
            )
    return RedeliveryHandling(tuple(actions))


def _target(text: str) -> MoveTarget:
    reference = DestinationReference.parse(text, default=DestinationKind.QUEUE)
    if reference.lookup:  # keeps the prefix: the destination is looked up before use
        return MoveTarget(MoveKind.SAME, LOOKUP + reference.name, reference.options)
    return MoveTarget.of(reference.resolve({}))
